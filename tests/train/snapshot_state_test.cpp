// Snapshots and precision: weights load into any floating dtype, a run resumes only in its own.
#include <refrain/autograd/tape.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/tests/support/values.h>
#include <refrain/train/snapshot_state.h>

#include <memory>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

std::shared_ptr<Module> make(std::string_view name, DType dtype, std::uint64_t seed, const Device& device = Device::cpu()) {
  const CreationScope scope({.device = device, .dtype = dtype, .seed = seed});
  if (name == "vit") {
    VitConfig config = vit_config("vit_ti_16");
    config.depth = 1, config.num_classes = 10;
    return std::make_shared<Vit>(config);
  }
  Gpt2Config config = gpt2_config("gpt2");
  config.width = 64, config.depth = 1, config.num_heads = 4, config.vocabulary = 3001;
  return std::make_shared<Gpt2>(config);
}

std::unique_ptr<AdamW> make_optimizer(const Module& model, const UpdateOptions& options = {}) {
  return std::make_unique<AdamW>(make_groups(model.named_parameters(), 0.05), AdamOptions{}, options);
}

void step(const Module& model, Optimizer& optimizer, int t) {
  std::uint64_t seed = 1000 * std::uint64_t(t);
  for (const Tensor& p : model.parameters()) {
    const Tensor grad = empty(p.shape(), p.dtype());
    Init::normal(0, 0.1).fill(grad, {.seed = ++seed});
    set_grad(p, grad);
  }
  optimizer.step(1e-3);
}

TrainerState at_step(std::int64_t step) {
  TrainerState state;
  state.step = step;
  return state;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool same_values(const Module& a, const Module& b) {
  const auto x = a.state_dict(), y = b.state_dict();
  bool is_same = x.size() == y.size();
  for (std::size_t i = 0; is_same && i < x.size(); ++i) is_same = same_bits(x[i].tensor, y[i].tensor);
  return is_same;
}

}  // namespace

TEST_CASE("load_model: weights of any floating dtype load into any other, in the model's own bytes") {
  const ScratchDirectory scratch;
  for (const char* name : {"vit", "gpt2"}) {
    for (DType from : {DType::f32, DType::f16, DType::bf16}) {
      const auto saved = make(name, from, 1);
      const std::filesystem::path run = scratch / concat(name, '-', from);
      save_snapshot(run, *saved, *make_optimizer(*saved), at_step(3));
      for (DType to : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        const Device device = Device::new_cpu();
        const auto loaded = make(name, to, 2, device);
        load_model(run / "snapshots" / "step-3", *loaded);
        std::int64_t own = 0;
        for (const NamedTensor& entry : loaded->state_dict()) own += entry.tensor.bytes();
        CHECK(device.peak_bytes() == own);
        const auto expected = saved->state_dict(), got = loaded->state_dict();
        REQUIRE(got.size() == expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          std::vector<float> values = expected[i].tensor.to_vector<float>();
          if (to == DType::f16) for (float& v : values) v = float(f16(v));
          if (to == DType::bf16) for (float& v : values) v = float(bf16(v));
          CHECK((got[i].tensor.to_vector<float>() == values));
        }
        const auto planned = make(name, to, 2, Device::plan());
        load_model(run / "snapshots" / "step-3", *planned);
      }
    }
  }
}

TEST_CASE("load_snapshot: another precision is refused by both names, and nothing is changed") {
  const ScratchDirectory scratch;
  const auto saved = make("gpt2", DType::f32, 1);
  auto optimizer = make_optimizer(*saved);
  step(*saved, *optimizer, 1);
  save_snapshot(scratch / "run", *saved, *optimizer, at_step(1));
  const std::filesystem::path snapshot = scratch / "run" / "snapshots" / "step-1";
  const auto half = make("gpt2", DType::bf16, 2), untouched = make("gpt2", DType::bf16, 2);
  const auto half_optimizer = make_optimizer(*half);
  const std::string message = error_of([&] { load_snapshot(snapshot, *half, *half_optimizer, 0); });
  CHECK(message.find("is f32, expected bf16 (and ") != std::string::npos);
  CHECK(message.find("a run goes on only with the dtypes it was made with") != std::string::npos);
  CHECK(same_values(*half, *untouched));
  CHECK(half_optimizer->num_steps() == 0);
  // The same parameters, but state of another dtype, or no master where there was one.
  const auto half_saved = make("gpt2", DType::bf16, 1);
  const auto with_master = make_optimizer(*half_saved, {.master = true});
  save_snapshot(scratch / "half", *half_saved, *with_master, at_step(1));
  const std::filesystem::path half_snapshot = scratch / "half" / "snapshots" / "step-1";
  CHECK(error_of([&] { load_snapshot(half_snapshot, *half, *half_optimizer, 0); }).find(".master' is unexpected") != std::string::npos);
  const auto wide_state = make_optimizer(*half, {.state = StateDType::f32, .master = true});
  CHECK(error_of([&] { load_snapshot(half_snapshot, *half, *wide_state, 0); }).find("is bf16, expected f32") != std::string::npos);
  CHECK(same_values(*half, *untouched));
}

TEST_CASE("load_snapshot: 16-bit runs go on bit for bit, masters and stochastic rounding too") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (const UpdateOptions& options :
         {UpdateOptions{.rounding = Rounding::stochastic, .seed = 5}, UpdateOptions{.state = StateDType::f32, .master = true}}) {
      const ScratchDirectory scratch;
      const auto unbroken = make("gpt2", dtype, 1);
      const auto optimizer = make_optimizer(*unbroken, options);
      for (int t = 1; t <= 2; ++t) step(*unbroken, *optimizer, t);
      save_snapshot(scratch / "run", *unbroken, *optimizer, at_step(2));
      const auto resumed = make("gpt2", dtype, 2);
      const auto resumed_optimizer = make_optimizer(*resumed, options);
      load_snapshot(scratch / "run" / "snapshots" / "step-2", *resumed, *resumed_optimizer, 0);
      for (int t = 3; t <= 4; ++t) {
        step(*unbroken, *optimizer, t);
        step(*resumed, *resumed_optimizer, t);
      }
      CHECK(same_values(*unbroken, *resumed));
      CHECK(resumed_optimizer->num_lost_updates() == optimizer->num_lost_updates());
    }
  }
}
