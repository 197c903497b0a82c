// What the engine's host code does with tensors on a CUDA device: the same numbers, files and batches as on the CPU.
#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/ops/embedding.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/session.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/view.h>
#include <refrain/data/loader.h>
#include <refrain/models/vit.h>
#include <refrain/nn/creation.h>
#include <refrain/nn/init.h>
#include <refrain/optim/all.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/support/scratch_directory.h>

#include <cmath>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

// Sample i: three numbers from i, with i as the target.
class CountedSamples : public Samples {
 public:
  explicit CountedSamples(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return {3}; }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return size_; }
  void write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const override {
    for (int i = 0; i < 3; ++i) reinterpret_cast<float*>(input)[i] = float(index * 10 + i) + 1000.f * float(epoch);
    *target = index;
  }

 private:
  std::int64_t size_;
};

Vit small_vit(const Device& device, DType dtype) {
  const CreationScope scope({.device = device, .dtype = dtype, .seed = 4});
  return Vit({.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 2, .num_heads = 2, .num_classes = 5});
}

bool same_state(const Module& a, const Module& b) {
  const std::vector<NamedTensor> of_a = a.state_dict(), of_b = b.state_dict();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (!same_bits(on_cpu(of_a[i].tensor), on_cpu(of_b[i].tensor))) return false;
  }
  return of_a.size() == of_b.size();
}

}  // namespace

TEST_CASE("cuda engine: initial values are the CPU's bits") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    CHECK(same_state(small_vit(cuda_device(), dtype), small_vit(Device::cpu(), dtype)));
  const RandomKey key{.seed = 9, .purpose = RandomPurpose::init};
  const std::int64_t numel = (std::int64_t{1} << 20) + 7;  // more than one part
  const Tensor there = empty({numel}, DType::f16, cuda_device()), here = empty({numel}, DType::f16);
  Init::trunc_normal(0, 0.02, -0.04, 0.04).fill(there, key);
  Init::trunc_normal(0, 0.02, -0.04, 0.04).fill(here, key);
  CHECK(same_bits(on_cpu(there), here));
}

TEST_CASE("cuda engine: weight files of a CUDA device load on the CPU and back, converted too") {
  const ScratchDirectory scratch;
  const Tensor large = random_tensor({700, 501}, DType::f32, 1), small = random_tensor({3}, DType::bf16, 2);  // over one block, under
  const std::vector<NamedTensor> there{
      {"large", view::permute(on_cuda(large), {1, 0})}, {"small", on_cuda(small)}, {"none", on_cuda(zeros({0, 4}, DType::f32))}};
  write_safetensors(scratch / "cuda", there);
  write_safetensors(scratch / "cpu", {{"large", view::permute(large, {1, 0})}, {"small", small}, {"none", zeros({0, 4}, DType::f32)}});
  CHECK(read_text_file(scratch / "cuda") == read_text_file(scratch / "cpu"));
  const SafetensorsFile file(scratch / "cpu");
  CHECK(same_bits(on_cpu(file.read("large", cuda_device())), contiguous_values(view::permute(large, {1, 0}))));
  const Tensor narrow = empty({501, 700}, DType::bf16, cuda_device()), expected = empty({501, 700}, DType::bf16);
  file.read_into("large", narrow, OtherPrecision::convert);
  file.read_into("large", expected, OtherPrecision::convert);
  CHECK(same_bits(on_cpu(narrow), expected));
}

TEST_CASE("cuda engine: a state dict of the CPU loads into a model on the device and back") {
  Vit there = small_vit(cuda_device(), DType::f32), here = small_vit(Device::cpu(), DType::f32);
  for (const NamedTensor& t : here.named_parameters()) fill_values(t.tensor, double(t.name.size()));
  there.load_state_dict(here.state_dict());
  CHECK(same_state(there, here));
  for (const NamedTensor& t : there.named_parameters()) fill_values(t.tensor, double(t.name.size()) / 2);
  here.load_state_dict(there.state_dict());
  CHECK(same_state(there, here));
}

TEST_CASE("cuda engine: a loader hands out the CPU's batches, held ones stay as they are") {
  for (const int num_held : {1, 3}) {
    const LoaderOptions options{.batch = 4, .seed = 3, .num_held = num_held, .num_slots = num_held + 2};
    LoaderOptions on_device = options;
    on_device.device = cuda_device();
    Loader there(std::make_shared<CountedSamples>(18), on_device), here(std::make_shared<CountedSamples>(18), options);
    std::vector<std::pair<Tensor, std::vector<float>>> held;
    for (int i = 0; i < 17; ++i) {
      if (i == 8) {
        there.set_state({1, 4});
        here.set_state({1, 4});
        held.clear();
      }
      const std::optional<Batch> a = there.next(), b = here.next();
      REQUIRE(a.has_value() == b.has_value());
      if (!a) continue;
      CHECK(a->input.device() == cuda_device());
      CHECK(a->input.to_vector<float>() == b->input.to_vector<float>());
      CHECK(a->target.to_vector<std::int64_t>() == b->target.to_vector<std::int64_t>());
      held.emplace_back(a->input, b->input.to_vector<float>());
      if (int(held.size()) > num_held) held.erase(held.begin());
      for (const auto& [tensor, values] : held) CHECK(tensor.to_vector<float>() == values);
    }
  }
}

TEST_CASE("cuda engine: certificate hashes are of the values, wherever they are") {
  const Tensor t = random_tensor({13, 9}, DType::f32, 5);
  CHECK(detail::hash_values(on_cuda(t)) == detail::hash_values(t));
  CHECK(detail::hash_values(view::permute(on_cuda(t), {1, 0})) == detail::hash_values(view::permute(t, {1, 0})));
}

TEST_CASE("cuda engine: counts, norms and what is not finite are read off the device") {
  const Tensor logits = random_tensor({9, 5}, DType::f32, 6), targets = from_values<std::int64_t>({0, 1, 2, 3, 4, -100, 1, 2, 3}, {9});
  CHECK(count_correct(on_cuda(logits), on_cuda(targets)) == count_correct(logits, targets));
  CHECK(count_targets(on_cuda(targets)) == 8);
  Tensor bad = clone(logits);
  fill_values(view::select(view::select(bad, 0, 3), 0, 2), HUGE_VAL);
  CHECK(count_non_finite(on_cuda(bad)) == 1);
  CHECK(count_non_finite(on_cuda(logits)) == 0);
  const Tensor w = on_cuda(full({4}, 3, DType::f32));
  set_requires_grad(w);
  set_grad(w, on_cuda(full({4}, 2, DType::f32)));
  CHECK(global_grad_norm(std::vector{w}) == 4);
}

TEST_CASE("cuda engine: an index or a target out of range is an error at the next wait, and the device goes on") {
  const Tensor table = on_cuda(random_tensor({5, 8}, DType::f32, 7));
  const Tensor rows = embedding(on_cuda(from_values<std::int64_t>({0, 1, 4, 7}, {4})), table);
  CHECK_THROWS_WITH(rows.to_vector<float>(), "embedding: index 7 at position 3 must be below 5");
  const Tensor right = embedding(on_cuda(from_values<std::int64_t>({4, 0}, {2})), table);
  CHECK(view::select(right, 0, 1).to_vector<float>() == view::select(table, 0, 0).to_vector<float>());
  const Tensor logits = on_cuda(random_tensor({3, 5}, DType::f32, 8));
  const Tensor loss = cross_entropy(logits, on_cuda(from_values<std::int64_t>({0, -3, 2}, {3})));
  CHECK_THROWS_WITH(loss.item(), Catch::StartsWith("cross_entropy: target -3 at position 1 must be below 5"));
  CHECK(std::isfinite(cross_entropy(logits, on_cuda(from_values<std::int64_t>({0, 3, 2}, {3}))).item()));
}
