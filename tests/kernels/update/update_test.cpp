// Update kernels against scalar code that rounds where the contract says, bit for bit.
#include <refrain/core/view.h>
#include <refrain/kernels/update/update.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

template <class T>
std::vector<T> values_of(const Tensor& t) {
  return t.to_vector<T>();
}

template <class T>
bool is_equal(const Tensor& t, const std::vector<T>& expected) {
  return values_of<T>(t) == expected;
}

template <class T>
void check_sgd(std::int64_t n, double momentum, bool nesterov) {
  const DType dtype = dtype_of<T>;
  const Tensor p = random_tensor({n}, dtype, 1), grad = random_tensor({n}, dtype, 2);
  const Tensor buffer = momentum != 0 ? random_tensor({n}, dtype, 3) : Tensor();
  auto expected = values_of<T>(p), g = values_of<T>(grad), m = momentum != 0 ? values_of<T>(buffer) : std::vector<T>();
  const double lr = 0.1, decay = 0.05, scale = 0.7;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    T d = std::fma(T(decay), expected[i], g[i] * T(scale));
    if (momentum != 0) {
      m[i] = std::fma(T(momentum), m[i], d);
      d = nesterov ? std::fma(T(momentum), m[i], d) : m[i];
    }
    expected[i] = std::fma(T(-lr), d, expected[i]);
  }
  launch(SgdUpdate{.grad = grad,
                   .lr = lr,
                   .weight_decay = decay,
                   .momentum = momentum,
                   .grad_scale = scale,
                   .nesterov = nesterov,
                   .out = p,
                   .momentum_buffer = buffer});
  CHECK(is_equal(p, expected));
  if (momentum != 0) CHECK(is_equal(buffer, m));
}

template <class T>
void check_adam(std::int64_t n, bool is_decoupled, std::int64_t step) {
  const DType dtype = dtype_of<T>;
  const Tensor p = random_tensor({n}, dtype, 1), grad = random_tensor({n}, dtype, 2), mean = random_tensor({n}, dtype, 3),
               square = random_tensor({n}, dtype, 4, 0, 1);
  auto expected = values_of<T>(p), grads = values_of<T>(grad), m = values_of<T>(mean), v = values_of<T>(square);
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.05, scale = 0.3;
  const double correction1 = 1 - std::pow(beta1, double(step)), correction2 = 1 - std::pow(beta2, double(step));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    T g = grads[i] * T(scale);
    if (is_decoupled) expected[i] *= T(1 - lr * decay);
    else g = std::fma(T(decay), expected[i], g);
    m[i] = std::fma(T(beta1), m[i], T(1 - beta1) * g);
    v[i] = std::fma(T(beta2), v[i], T(1 - beta2) * (g * g));
    expected[i] = std::fma(T(-lr / correction1), m[i] / std::fma(std::sqrt(v[i]), T(1 / std::sqrt(correction2)), T(eps)), expected[i]);
  }
  launch(AdamUpdate{.grad = grad,
                    .lr = lr,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .eps = eps,
                    .weight_decay = decay,
                    .grad_scale = scale,
                    .is_decoupled = is_decoupled,
                    .step = step,
                    .out = p,
                    .mean = mean,
                    .square = square});
  CHECK(is_equal(p, expected));
  CHECK(is_equal(mean, m));
  CHECK(is_equal(square, v));
}

}  // namespace

TEST_CASE("sgd_update: every element rounds as the contract says, in body and tail") {
  for (std::int64_t n : {0, 1, 15, 31, 32, 33, 1000, 40001}) {
    for (double momentum : {0.0, 0.9}) {
      check_sgd<float>(n, momentum, false);
      check_sgd<double>(n, momentum, false);
    }
    check_sgd<float>(n, 0.9, true);
    check_sgd<double>(n, 0.9, true);
  }
}

TEST_CASE("adam_update: every element rounds as the contract says, in body and tail") {
  for (std::int64_t n : {0, 1, 15, 31, 32, 33, 1000, 40001}) {
    for (bool is_decoupled : {false, true}) {
      for (std::int64_t step : {1, 1000}) {
        check_adam<float>(n, is_decoupled, step);
        check_adam<double>(n, is_decoupled, step);
      }
    }
  }
}

TEST_CASE("adam_update: a zero gradient changes nothing but the decay") {
  for (double decay : {0.0, 0.01}) {
    const Tensor p = full({5}, 1, DType::f32), mean = zeros({5}, DType::f32), square = zeros({5}, DType::f32);
    launch(AdamUpdate{.grad = zeros({5}, DType::f32),
                      .lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .weight_decay = decay,
                      .grad_scale = 1,
                      .is_decoupled = true,
                      .step = 1,
                      .out = p,
                      .mean = mean,
                      .square = square});
    CHECK(p.to_vector<float>() == std::vector<float>(5, decay == 0 ? 1.0f : float(1 - 1e-3 * 0.01)));
  }
}

TEST_CASE("update kernels: any cut of a parameter gives the same bits") {
  const Tensor whole = random_tensor({50000}, DType::f32, 1), parts = clone(whole), grad = random_tensor({50000}, DType::f32, 2);
  const Tensor state = zeros({4, 50000}, DType::f32);
  const auto update = [&](const Tensor& p, std::int64_t begin, std::int64_t end, int row) {
    launch(AdamUpdate{.grad = view::slice(grad, 0, begin, end),
                      .lr = 1e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .grad_scale = 1,
                      .is_decoupled = true,
                      .step = 1,
                      .out = view::slice(p, 0, begin, end),
                      .mean = view::slice(view::select(state, 0, row), 0, begin, end),
                      .square = view::slice(view::select(state, 0, row + 1), 0, begin, end)});
  };
  update(whole, 0, 50000, 0);
  update(parts, 0, 17, 2);
  update(parts, 17, 33333, 2);
  update(parts, 33333, 50000, 2);
  CHECK(same_bits(whole, parts));
}

TEST_CASE("scale and zero: in place") {
  const Tensor x = random_tensor({70001}, DType::f32, 1);
  auto expected = x.to_vector<float>();
  for (float& v : expected) v *= 0.3f;
  launch(ScaleInPlace{.factor = 0.3, .out = x});
  CHECK(is_equal(x, expected));
  launch(ZeroInPlace{.out = x});
  CHECK(is_equal(x, std::vector<float>(70001, 0.0f)));
}

TEST_CASE("update kernels: wrong arguments are named") {
  const Tensor p = zeros({3}, DType::f32);
  CHECK_THROWS_WITH(launch(SgdUpdate{.grad = zeros({4}, DType::f32),
                                     .lr = 1,
                                     .weight_decay = 0,
                                     .momentum = 0,
                                     .grad_scale = 1,
                                     .nesterov = false,
                                     .out = p,
                                     .momentum_buffer = {}}),
                    "sgd_update: grad must be [3], got [4]");
  CHECK_THROWS_AS(
      launch(SgdUpdate{
          .grad = p, .lr = 1, .weight_decay = 0, .momentum = 0.9, .grad_scale = 1, .nesterov = false, .out = p, .momentum_buffer = {}}),
      InvalidArgument);
  CHECK_THROWS_AS(launch(AdamUpdate{.grad = p,
                                    .lr = 1,
                                    .beta1 = 1,
                                    .beta2 = 0.9,
                                    .eps = 0,
                                    .weight_decay = 0,
                                    .grad_scale = 1,
                                    .is_decoupled = false,
                                    .step = 1,
                                    .out = p,
                                    .mean = p,
                                    .square = p}),
                  InvalidArgument);
}

TEST_CASE("update kernels: misaligned tensors, nothing written outside") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t n : {1, 7, 17, 33, 100}) {
      const Guarded p(random_tensor({n}, dtype, 1)), grad(random_tensor({n}, dtype, 2)), mean(zeros({n}, dtype)), square(zeros({n}, dtype));
      launch(AdamUpdate{.grad = grad.tensor,
                        .lr = 1e-2,
                        .beta1 = 0.9,
                        .beta2 = 0.999,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .grad_scale = 1,
                        .is_decoupled = true,
                        .step = 1,
                        .out = p.tensor,
                        .mean = mean.tensor,
                        .square = square.tensor});
      launch(SgdUpdate{.grad = grad.tensor,
                       .lr = 0.1,
                       .weight_decay = 0,
                       .momentum = 0.9,
                       .grad_scale = 1,
                       .nesterov = true,
                       .out = p.tensor,
                       .momentum_buffer = mean.tensor});
      launch(ScaleInPlace{.factor = 2, .out = p.tensor});
      launch(ZeroInPlace{.out = square.tensor});
      for (const Guarded* g : {&p, &grad, &mean, &square}) CHECK(g->is_intact());
    }
  }
}

TEST_CASE("updates of many parameters: what each does alone; a guard that is not finite keeps them back") {
  for (const double guard : {0.0, 1.0, std::nan(""), HUGE_VAL}) {
    std::vector<Tensor> together, alone;
    for (auto* p : {&together, &alone})
      for (std::int64_t n : {3, 0, 700}) p->push_back(random_tensor({n}, n == 3 ? DType::f64 : DType::f32, 1));
    const Tensor guard_value = full({1}, guard, DType::f64);
    std::vector<Tensor> grads;  // kernels own nothing
    const auto update_of = [&](const Tensor& p) {
      grads.push_back(full(p.shape(), 2, p.dtype()));
      return SgdUpdate{.grad = grads.back(), .lr = 0.1 * double(1 + p.numel()), .weight_decay = 0.5, .momentum = 0,
                       .grad_scale = 1, .nesterov = false, .out = p, .momentum_buffer = {}, .guard = guard_value};
    };
    const std::vector<Tensor> before{random_tensor({3}, DType::f64, 1), zeros({0}, DType::f32), random_tensor({700}, DType::f32, 1)};
    const std::vector<SgdUpdate> updates{update_of(together[0]), update_of(together[1]), update_of(together[2])};
    launch(SgdUpdates{.updates = updates});
    for (const Tensor& p : alone) launch(update_of(p));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      CHECK(together[i].to_vector<double>() == alone[i].to_vector<double>());
      CHECK((together[i].to_vector<double>() == before[i].to_vector<double>()) == (!std::isfinite(guard) || i == 1));
    }
    const Cost all = cost(SgdUpdates{.updates = updates}), first = cost(updates[0]), last = cost(updates[2]);
    CHECK(all.flops == first.flops + last.flops);
    CHECK(all.bytes == first.bytes + last.bytes);
  }
}

TEST_CASE("updates of many parameters: each is validated before the first takes place") {
  const Tensor good = full({2}, 1, DType::f32), bad = full({3}, 1, DType::f32), grad = full({2}, 1, DType::f32);
  std::vector<Tensor> keep;  // kernels own nothing
  const auto update_of = [&](const Tensor& p) {
    const Tensor mean = zeros(p.shape(), DType::f32), square = zeros(p.shape(), DType::f32);
    keep.insert(keep.end(), {mean, square});
    return AdamUpdate{.grad = grad, .lr = 1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1, .weight_decay = 0, .grad_scale = 1, .is_decoupled = false,
                      .step = 1, .out = p, .mean = mean, .square = square};
  };
  const std::vector<AdamUpdate> updates{update_of(good), update_of(bad)};
  CHECK_THROWS_WITH(launch(AdamUpdates{.updates = updates}), Catch::Contains("grad must be [3], got [2]"));
  CHECK(good.to_vector<float>() == std::vector<float>{1, 1});
}
