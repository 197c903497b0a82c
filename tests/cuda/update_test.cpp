// Parameter updates on CUDA: the CPU's bits in parameter, state, master copy and counters, for every mix of dtypes and rounding.
#include <refrain/kernels/update/update.h>
#include <refrain/tests/cuda/layouts.h>

#include <functional>

using namespace refrain;

namespace {

constexpr RandomKey kKey{.seed = 11, .step = 5, .stage = 0xabcdef, .call = 6, .purpose = RandomPurpose::update};

struct Variant {
  DType dtype, grad, state;
  bool has_master = false;
  Rounding rounding = Rounding::nearest;
};

std::vector<Variant> variants() {
  std::vector<Variant> all{{DType::f64, DType::f64, DType::f64}, {DType::f32, DType::f32, DType::f32}};
  for (DType dtype : kHalves)
    for (DType grad : {dtype, DType::f32})
      for (DType state : {dtype, DType::f32})
        for (bool has_master : {false, true})
          for (Rounding rounding : {Rounding::nearest, Rounding::stochastic})
            all.push_back({dtype, grad, state, has_master, rounding});
  return all;
}

// Ordinary values, and ones that overflow, vanish or are subnormal on the way.
Tensor hostile(std::int64_t n, DType dtype, std::uint64_t seed, bool is_positive = false) {
  std::vector<double> values = random_values(n, seed, is_positive ? 0 : -1, 1);
  const double special[] = {0, 1e-5, 6e4, 1e-20, 1e-38, 3e-39, 1e30, 3e38, HUGE_VAL, std::nan(""), -0.0, -2e-20, 0x1p-126};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((i + seed) % 9 == 4) values[i] = special[(i + 3 * seed) % std::size(special)];
    if (is_positive) values[i] = std::abs(values[i]);
  }
  return tensor_of(values, {n}, dtype);
}

struct Tensors {
  Tensor p, grad, first, second, master, num_lost, num_non_finite;
};

// Runs the update on both and compares all it may write.
void check_update(const Variant& v, std::int64_t n, std::int64_t shift, bool has_counters,
                  const std::function<void(const Tensors&)>& update) {
  INFO(v.dtype << " grad " << v.grad << " state " << v.state << (v.has_master ? " master" : "")
               << (v.rounding == Rounding::stochastic ? " stochastic" : "") << ", " << n << " elements, shift " << shift);
  Tensors host{hostile(n, v.dtype, 1), hostile(n, v.grad, 2), hostile(n, v.state, 3), hostile(n, v.state, 4, true), {}, {}, {}};
  if (v.has_master) host.master = hostile(n, DType::f32, 5);
  if (has_counters && is_16_bit(v.dtype)) host.num_lost = full({1}, 3, DType::i64);
  if (has_counters) host.num_non_finite = full({1}, 5, DType::i64);
  std::vector<CudaGuarded> keep;
  const auto moved = [&](const Tensor& t) {
    if (!t.defined()) return Tensor();
    keep.emplace_back(t, shift);
    return keep.back().tensor;
  };
  const Tensors device{moved(host.p),      on_cuda(host.grad),     moved(host.first),           moved(host.second),
                       moved(host.master), on_cuda(host.num_lost), on_cuda(host.num_non_finite)};
  update(host);
  update(device);
  CHECK(num_different_when_flushed(on_cpu(device.p), host.p) == 0);
  CHECK(num_different(on_cpu(device.first), host.first) == 0);
  CHECK(num_different(on_cpu(device.second), host.second) == 0);
  if (v.has_master) CHECK(num_different(on_cpu(device.master), host.master) == 0);
  if (host.num_lost.defined()) CHECK(device.num_lost.item() == host.num_lost.item());
  if (has_counters) CHECK(device.num_non_finite.item() == host.num_non_finite.item());
  for (const CudaGuarded& each : keep) CHECK(each.is_intact());
}

}  // namespace

TEST_CASE("cuda sgd_update: the CPU's bits with and without momentum, in every mix") {
  for (const Variant& v : variants()) {
    for (std::int64_t n : {0, 1, 33, 1000}) {
      for (int option = 0; option < 3; ++option) {
        for (std::int64_t shift : {0, 1}) {
          check_update(v, n, shift, option != 1, [&](const Tensors& t) {
            launch(SgdUpdate{.grad = t.grad,
                             .lr = 1e-3,
                             .weight_decay = option == 0 ? 0 : 0.01,
                             .momentum = option == 0 ? 0 : 0.9,
                             .grad_scale = 0.37,
                             .nesterov = option == 2,
                             .out = t.p,
                             .momentum_buffer = option == 0 ? Tensor() : t.first,
                             .master = t.master,
                             .num_lost = t.num_lost,
                             .num_non_finite = t.num_non_finite,
                             .rounding = {v.rounding, kKey, 4 + option}});
          });
        }
      }
    }
  }
}

TEST_CASE("cuda adam_update: the CPU's bits, Adam and AdamW, in every mix") {
  for (const Variant& v : variants()) {
    for (std::int64_t n : {0, 1, 31, 1000}) {
      for (bool is_decoupled : {false, true}) {
        for (std::int64_t shift : {0, 1}) {
          check_update(v, n, shift, is_decoupled, [&](const Tensors& t) {
            launch(AdamUpdate{.grad = t.grad,
                              .lr = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .grad_scale = 0.25,
                              .is_decoupled = is_decoupled,
                              .step = is_decoupled ? 1 : 137,
                              .out = t.p,
                              .mean = t.first,
                              .square = t.second,
                              .master = t.master,
                              .num_lost = t.num_lost,
                              .num_non_finite = t.num_non_finite,
                              .rounding = {v.rounding, kKey, shift == 0 ? 8 : 3}});
          });
        }
      }
    }
  }
}

TEST_CASE("cuda updates: a block goes on to pieces farther on and still counts each element once") {
  const std::int64_t n = 1024 * 1024 + 2500;  // more than the most blocks take at once
  const Tensor p = full({n}, 1, DType::bf16, cuda_device()), grad = full({n}, 1e-6, DType::bf16, cuda_device());
  const Tensor lost = on_cuda(zeros({1}, DType::i64));
  launch(SgdUpdate{.grad = grad,
                   .lr = 1,
                   .weight_decay = 0,
                   .momentum = 0,
                   .grad_scale = 1,
                   .nesterov = false,
                   .out = p,
                   .momentum_buffer = {},
                   .num_lost = lost});
  CHECK(lost.item() == double(n));
}

TEST_CASE("cuda stochastic rounding: all values between two neighbours, and what overflows, as on the CPU") {
  for (DType dtype : kHalves) {
    const std::int64_t n = 20000;
    std::vector<double> values = random_values(n, 21);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], int(i % 60) - 40);
    for (double v : {65504.0, 65519.9, 65520.0, 3.38e38, 3.39e38, 3.4e38, 0x1p-24, 0x1p-25, 0x1p-14})
      values[std::size_t(v) % 19997] = v;
    const Tensor grad = tensor_of(values, {n}, DType::f32);
    const Tensor host = zeros({n}, dtype), device = on_cuda(host);
    for (const Tensor& p : {host, device}) {
      launch(SgdUpdate{.grad = p.is_on_host() ? grad : on_cuda(grad),
                       .lr = -1,
                       .weight_decay = 0,
                       .momentum = 0,
                       .grad_scale = 1,
                       .nesterov = false,
                       .out = p,
                       .momentum_buffer = {},
                       .rounding = {Rounding::stochastic, kKey, 1}});
    }
    CHECK(num_different(on_cpu(device), host) == 0);
  }
}

TEST_CASE("cuda zero and scale: every dtype, length and alignment") {
  for (DType dtype : kAllDTypes) {
    for (std::int64_t n : {0, 1, 33, 1000}) {
      for (std::int64_t shift : {0, 1}) {
        INFO(dtype << " " << n << " " << shift);
        const CudaGuarded out({n}, dtype, shift);
        launch(ZeroInPlace{.out = out.tensor});
        CHECK(same_bits(on_cpu(out.tensor), zeros({n}, dtype)));
        CHECK(out.is_intact());
        if (!is_floating(dtype)) continue;
        const Tensor x = random_tensor({n}, dtype, 3);
        const CudaGuarded device_x(x, shift);
        launch(ScaleInPlace{.factor = 0.3, .out = x});
        launch(ScaleInPlace{.factor = 0.3, .out = device_x.tensor});
        CHECK(same_bits(on_cpu(device_x.tensor), x));
        CHECK(device_x.is_intact());
      }
    }
  }
}
