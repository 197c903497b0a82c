// Many updates and many norms in few launches on CUDA: the bits of one after the other, there and on the CPU.
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/update/update.h>
#include <refrain/tests/cuda/layouts.h>

using namespace refrain;

namespace {

// More than a table holds, and more than one takes of each dtype.
constexpr std::int64_t kNumParameters = 120;

std::int64_t numel_of_parameter(std::int64_t i) {
  constexpr std::int64_t kSizes[] = {33, 1, 0, 1000, 7, 1024, 64, 2500, 1025};
  return kSizes[i % std::int64_t(std::size(kSizes))];
}
DType dtype_of_parameter(std::int64_t i) {
  constexpr DType kMix[] = {DType::bf16, DType::f32, DType::bf16, DType::f16, DType::bf16, DType::f32, DType::f64, DType::bf16};
  return kMix[i % std::int64_t(std::size(kMix))];
}

struct Parameter {
  Tensor p, grad, first, second, master;
};

// Every third begins one element after an aligned address; every fourth 16-bit one has f32 state and a master copy.
Parameter parameter(std::int64_t i, const Device& device) {
  const DType dtype = dtype_of_parameter(i);
  const bool is_wide = is_16_bit(dtype) && i % 4 == 0;
  const std::int64_t n = numel_of_parameter(i), shift = i % 3 == 0 ? 1 : 0;
  const auto make = [&](DType type, std::uint64_t seed, double low, double scale) {
    const std::vector<double> values = random_values(n + shift, seed + std::uint64_t(i) * 10, low, scale);
    return view::slice(to_device(tensor_of(values, {n + shift}, type), device), 0, shift, n + shift);
  };
  const DType state = is_wide ? DType::f32 : dtype;
  return {make(dtype, 1, -1, 1), make(dtype, 2, -1, 1), make(state, 3, -1, 1), make(state, 4, 0, 1),
          is_wide ? make(DType::f32, 5, -1, 1) : Tensor()};
}

struct Course {
  std::vector<Parameter> parameters;
  Tensor num_lost, num_non_finite;
};

Course course(const Device& device) {
  Course all{{}, zeros({1}, DType::i64, device), zeros({kNumParameters}, DType::i64, device)};
  for (std::int64_t i = 0; i < kNumParameters; ++i) all.parameters.push_back(parameter(i, device));
  return all;
}

UpdateRounding rounding_of(std::int64_t i) {
  return {i % 2 == 0 ? Rounding::stochastic : Rounding::nearest,
          {.seed = 3, .step = 2, .stage = std::uint32_t(i), .call = 4, .purpose = RandomPurpose::update},
          i % 5};
}

std::vector<SgdUpdate> sgd_updates(const Course& c, const Tensor& guard = {}) {
  std::vector<SgdUpdate> all;
  for (std::int64_t i = 0; i < kNumParameters; ++i) {
    const Parameter& t = c.parameters[std::size_t(i)];
    const bool has_momentum = i % 7 != 0;
    all.push_back(SgdUpdate{.grad = t.grad,
                            .lr = i % 6 == 0 ? 1e-5 : 1e-2 * double(1 + i % 3),
                            .weight_decay = i % 2 == 0 ? 0.1 : 0,
                            .momentum = has_momentum ? 0.9 : 0,
                            .grad_scale = 0.5,
                            .nesterov = has_momentum && i % 4 == 1,
                            .out = t.p,
                            .momentum_buffer = has_momentum ? t.first : Tensor(),
                            .master = t.master,
                            .num_lost = is_16_bit(t.p.dtype()) ? c.num_lost : Tensor(),
                            .num_non_finite = view::slice(c.num_non_finite, 0, i, i + 1),
                            .rounding = rounding_of(i),
                            .guard = guard});
  }
  return all;
}

std::vector<AdamUpdate> adam_updates(const Course& c, const Tensor& guard = {}) {
  std::vector<AdamUpdate> all;
  for (std::int64_t i = 0; i < kNumParameters; ++i) {
    const Parameter& t = c.parameters[std::size_t(i)];
    all.push_back(AdamUpdate{.grad = t.grad,
                             .lr = i % 6 == 0 ? 1e-7 : 1e-2 * double(1 + i % 3),
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = i % 2 == 0 ? 0.1 : 0,
                             .grad_scale = 0.5,
                             .is_decoupled = i % 3 == 0,
                             .step = 1 + i,
                             .out = t.p,
                             .mean = t.first,
                             .square = t.second,
                             .master = t.master,
                             .num_lost = is_16_bit(t.p.dtype()) ? c.num_lost : Tensor(),
                             .num_non_finite = view::slice(c.num_non_finite, 0, i, i + 1),
                             .rounding = rounding_of(i),
                             .guard = guard});
  }
  return all;
}

void check_equal(const Course& a, const Course& b) {
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    INFO("parameter " << i);
    const Parameter &x = a.parameters[i], &y = b.parameters[i];
    CHECK(num_different(on_cpu(x.p), on_cpu(y.p)) == 0);
    CHECK(num_different(on_cpu(x.first), on_cpu(y.first)) == 0);
    CHECK(num_different(on_cpu(x.second), on_cpu(y.second)) == 0);
    if (x.master.defined()) CHECK(num_different(on_cpu(x.master), on_cpu(y.master)) == 0);
  }
  CHECK(a.num_lost.item() == b.num_lost.item());
  CHECK(a.num_non_finite.to_vector<std::int64_t>() == b.num_non_finite.to_vector<std::int64_t>());
}

}  // namespace

TEST_CASE("cuda updates of many parameters: the bits of one after the other, dtypes and options mixed") {
  const Course here = course(Device::cpu()), alone = course(cuda_device()), together = course(cuda_device());
  for (int step = 0; step < 2; ++step) {
    launch(SgdUpdates{.updates = sgd_updates(together)});
    launch(AdamUpdates{.updates = adam_updates(together)});
    for (const Course* one : {&here, &alone}) {
      for (const SgdUpdate& each : sgd_updates(*one)) launch(each);
      for (const AdamUpdate& each : adam_updates(*one)) launch(each);
    }
  }
  check_equal(together, alone);
  check_equal(together, here);
  CHECK(here.num_lost.item() > 0);
}

TEST_CASE("cuda updates with a guard: nothing is changed or counted where it is not finite") {
  for (const double value : {0.0, 5.0, HUGE_VAL, std::nan("")}) {
    const Course given = course(cuda_device()), guarded = course(cuda_device());
    const Tensor guard = full({1}, value, DType::f64, cuda_device());
    launch(SgdUpdates{.updates = sgd_updates(guarded, guard)});
    launch(AdamUpdates{.updates = adam_updates(guarded, guard)});
    if (std::isfinite(value)) {
      launch(SgdUpdates{.updates = sgd_updates(given)});
      launch(AdamUpdates{.updates = adam_updates(given)});
    }
    check_equal(guarded, given);
  }
}

TEST_CASE("cuda squared_norms: the bits of one after the other, in launches of any size") {
  // More tensors than a table holds, more blocks than the scratch of a launch, and lengths 0 and 1.
  for (const std::int64_t count : {1, 9, 450}) {
    std::vector<Tensor> tensors;
    for (std::int64_t i = 0; i < count; ++i) {
      const DType dtype = i / 40 % 2 == 0 ? DType::f32 : dtype_of_parameter(i);
      const std::int64_t n = count == 9 && i % 4 == 0 ? 30000 : numel_of_parameter(i + 3), shift = i % 3 == 1 ? 1 : 0;
      const Tensor all = on_cuda(tensor_of(random_values(n + shift, std::uint64_t(i), -1, 1), {n + shift}, dtype));
      tensors.push_back(view::slice(all, 0, shift, n + shift));
    }
    const std::vector<In> x(tensors.begin(), tensors.end());
    const std::int64_t scratch = squared_norms_scratch_numel(x, DeviceKind::cuda);
    CHECK(scratch >= squared_norms_scratch_numel(x, DeviceKind::cpu));
    const CudaGuarded out({count}, DType::f64), partial({scratch}, DType::f64);
    launch(SquaredNorms{.x = x, .out = out.tensor, .scratch = partial.tensor});
    const std::vector<double> values = out.tensor.to_vector<double>();
    for (std::int64_t i = 0; i < count; ++i) {
      const Tensor& one = tensors[std::size_t(i)];
      const Tensor alone = poisoned({1}, DType::f64, cuda_device());
      launch(SquaredNorm{.x = one, .out = alone,
                         .scratch = poisoned({squared_norm_scratch_numel(one.numel())}, DType::f64, cuda_device())});
      CHECK(alone.item() == values[std::size_t(i)]);
    }
    CHECK(out.is_intact());
    CHECK(partial.is_intact());
  }
}

TEST_CASE("cuda squared_norm with a guard: it stays as it is until a norm is not finite, and NaN from then on") {
  const Tensor guard = zeros({1}, DType::f64, cuda_device());
  const auto guard_after = [&](double value) {
    const Tensor x = full({40}, value, DType::f32, cuda_device());
    launch(SquaredNorm{.x = x, .out = poisoned({1}, DType::f64, cuda_device()),
                       .scratch = poisoned({1}, DType::f64, cuda_device()), .guard = guard});
    return guard.item();
  };
  CHECK(guard_after(3e38) == 0);
  CHECK(guard_after(-1) == 0);
  CHECK(std::isnan(guard_after(HUGE_VAL)));
  CHECK(std::isnan(guard_after(1)));
}
