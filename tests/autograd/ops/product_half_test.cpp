// The ops on matrix products in 16 bits: values and gradients against f64 on the same rounded inputs, the dtypes of mixed
// modes, and what memory they take. Bounds as in tests/kernels/matmul/gemm_half_test.cpp.
#include <refrain/autograd/all.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

Tensor leaf(const Shape& shape, std::uint64_t seed, DType dtype) {
  const Tensor t = convert(random_tensor(shape, DType::f32, seed), dtype);
  set_requires_grad(t);
  return t;
}

Tensor wide_leaf(const Tensor& t) {
  const Tensor wide = convert(detach(t), DType::f64);
  set_requires_grad(wide);
  return wide;
}

Tensor magnitudes(const Tensor& t) { return abs(convert(detach(t), DType::f64)); }

double unit(DType dtype) { return dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

// |got - ref| <= u |ref| + (1 + u) (n + 8) 2^-24 sum|terms| for a sum of n terms.
void check_bound(const Tensor& got, const Tensor& ref, const Tensor& sum_of_magnitudes, std::int64_t n) {
  REQUIRE(got.shape() == ref.shape());
  const std::vector<double> g = got.to_vector<double>(), r = ref.to_vector<double>(), s = sum_of_magnitudes.to_vector<double>();
  const double u = unit(got.dtype());
  double worst = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double sum_error = double(n + 8) * (0x1p-24 * s[i] + 0x1p-126), error = std::abs(g[i] - r[i]);
    worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error / (u * (std::abs(r[i]) + sum_error) + sum_error + 0x1p-25));
  }
  CHECK(worst <= 1);
}

// Bytes above what is alive when f starts.
std::int64_t peak_of(const std::function<void()>& f) {
  const Device device = Device::cpu();
  device.reset_peak();
  const std::int64_t before = device.live_bytes();
  f();
  return device.peak_bytes() - before;
}

}  // namespace

TEST_CASE("linear: 16-bit values and gradients are f32 sums rounded once, with 16-bit or f32 parameters") {
  for (const Shape& shape : {Shape{31, 33}, Shape{2, 17, 64}, Shape{1, 1}, Shape{0, 5}, Shape{1000, 31}, Shape{5, 0}}) {
    for (std::int64_t out : {1, 33, 100}) {
      for (auto [dtype, parameters] : std::vector<std::pair<DType, DType>>{
               {DType::f16, DType::f16}, {DType::bf16, DType::bf16}, {DType::f16, DType::f32}, {DType::bf16, DType::f32}}) {
        const std::int64_t in = shape[shape.size() - 1];
        const Tensor x = leaf(shape, 1, dtype), weight = leaf({out, in}, 2, parameters), bias = leaf({out}, 3, parameters);
        const Tensor y = linear(x, weight, bias);
        REQUIRE(y.dtype() == dtype);
        const Tensor grad = convert(random_tensor(y.shape(), DType::f32, 4), dtype);
        backward(y, {.grad_out = grad});
        // The weight as the product sees it.
        const Tensor seen = convert(detach(weight), dtype), wide_x = wide_leaf(x), wide_weight = wide_leaf(seen),
                     wide_bias = wide_leaf(bias);
        const Tensor ref = linear(wide_x, wide_weight, wide_bias);
        backward(ref, {.grad_out = convert(grad, DType::f64)});
        INFO("x " << shape << " out " << out << " " << dtype << " parameters " << parameters);
        const Tensor x_abs = magnitudes(x), w_abs = magnitudes(seen), g_abs = magnitudes(grad);
        check_bound(y, ref, linear(x_abs, w_abs, magnitudes(bias)), in + 1);
        check_bound(grad_of(x), grad_of(wide_x), linear(g_abs, view::transpose(w_abs, 0, 1)), out);
        CHECK(grad_of(weight).dtype() == parameters);
        CHECK(grad_of(bias).dtype() == parameters);
        const std::int64_t rows = in == 0 ? 5 : x.numel() / in;
        const Tensor flat_g = view::reshape(g_abs, {rows, out}), flat_x = view::reshape(x_abs, {rows, in});
        check_bound(grad_of(weight), grad_of(wide_weight), matmul(view::transpose(flat_g, 0, 1), flat_x), rows);
        check_bound(grad_of(bias), grad_of(wide_bias), sum(flat_g, {0}), rows);
      }
    }
  }
}

TEST_CASE("matmul: 16-bit values and gradients are f32 sums rounded once, over broadcast batches too") {
  const std::vector<std::pair<Shape, Shape>> cases = {{{33, 7}, {7, 31}},   {{2, 3, 40}, {2, 40, 5}},      {{2, 30, 4}, {4, 5}},
                                                      {{3, 4}, {20, 4, 5}}, {{2, 1, 3, 4}, {1, 30, 4, 2}}, {{0, 3, 4}, {4, 5}},
                                                      {{1000, 1}, {1, 1}}};
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& [a_shape, b_shape] : cases) {
      const Tensor a = leaf(a_shape, 1, dtype), b = leaf(b_shape, 2, dtype), y = matmul(a, b);
      const Tensor grad = convert(random_tensor(y.shape(), DType::f32, 3), dtype);
      backward(y, {.grad_out = grad});
      const Tensor wide_a = wide_leaf(a), wide_b = wide_leaf(b), ref = matmul(wide_a, wide_b);
      backward(ref, {.grad_out = convert(grad, DType::f64)});
      const Tensor abs_a = magnitudes(a), abs_b = magnitudes(b);
      set_requires_grad(abs_a);
      set_requires_grad(abs_b);
      const Tensor abs_y = matmul(abs_a, abs_b);
      backward(abs_y, {.grad_out = magnitudes(grad)});
      INFO("a " << a_shape << " b " << b_shape << " " << dtype);
      check_bound(y, ref, abs_y, a.dim(-1));
      check_bound(grad_of(a), grad_of(wide_a), grad_of(abs_a), y.numel());
      check_bound(grad_of(b), grad_of(wide_b), grad_of(abs_b), y.numel());
    }
  }
}

TEST_CASE("linear: strided 16-bit inputs give the bits of contiguous ones") {
  const Tensor x = convert(random_tensor({20, 33}, DType::f32, 1), DType::bf16),
               weight = convert(random_tensor({7, 33}, DType::f32, 2), DType::bf16);
  const Tensor turned = view::transpose(contiguous_values(view::transpose(x, 0, 1)), 0, 1);
  CHECK(same_bits(linear(x, weight), linear(turned, weight)));
  CHECK(same_bits(matmul(x, view::transpose(weight, 0, 1)), matmul(turned, view::transpose(weight, 0, 1))));
}

TEST_CASE("linear: in 16 bits no tensor wider than its operands is allocated, in mixed modes one 16-bit copy of the weight at a time") {
  const std::int64_t rows = 256, width = 512;  // m n too large for split_k, which has f32 scratch of its own
  const std::int64_t operand = rows * width * 2, weight_bytes = width * width * 2;
  for (DType parameters : {DType::bf16, DType::f32}) {
    const std::int64_t copy = parameters == DType::f32 ? weight_bytes : 0, size = parameters == DType::f32 ? 4 : 2;
    const Tensor x = leaf({rows, width}, 1, DType::bf16), weight = leaf({width, width}, 2, parameters), bias = leaf({width}, 3, parameters);
    Tensor y;
    const std::int64_t forward_bytes = peak_of([&] { y = linear(x, weight, bias); });
    CHECK(forward_bytes == operand + copy);
    const Tensor grad = convert(random_tensor({rows, width}, DType::f32, 4), DType::bf16);
    const std::int64_t backward_bytes = peak_of([&] { backward(y, {.grad_out = grad}); });
    // The three gradients, and the copy the gradient of x reads.
    CHECK(backward_bytes <= width * width * size + width * size + operand + copy + 4096);
  }
}

TEST_CASE("conv2d and patch_embedding: mixed modes write f32 gradients for f32 parameters and save the images as they are") {
  const Tensor images = random_tensor({3, 2, 8, 8}, DType::f32, 1), weight = leaf({5, 2, 4, 4}, 2, DType::f32),
               bias = leaf({5}, 3, DType::f32);
  Tensor patches, planes;
  {
    const PrecisionScope scope(Precision::bf16_mixed);
    patches = patch_embedding(images, weight, bias);
    planes = conv2d(images, weight, bias, 4);
  }
  CHECK(patches.dtype() == DType::bf16);
  CHECK(planes.dtype() == DType::bf16);
  CHECK(same_bits(detach(view::permute(view::reshape(planes, {3, 5, 4}), {0, 2, 1})), detach(patches)));
  const Tensor grad = convert(random_tensor(patches.shape(), DType::f32, 4), DType::bf16);
  backward(patches, {.grad_out = grad});
  const Tensor weight_grad = grad_of(weight), bias_grad = grad_of(bias);
  CHECK(weight_grad.dtype() == DType::f32);
  CHECK(bias_grad.dtype() == DType::f32);
  const Tensor seen_weight = wide_leaf(convert(detach(weight), DType::bf16)), seen_bias = wide_leaf(bias);
  const Tensor ref = patch_embedding(convert(convert(images, DType::bf16), DType::f64), seen_weight, seen_bias);
  backward(ref, {.grad_out = convert(grad, DType::f64)});
  CHECK(error_against(weight_grad, grad_of(seen_weight).to_vector<double>()) < 12 * 0x1p-24 * 12);
  CHECK(error_against(bias_grad, grad_of(seen_bias).to_vector<double>()) < 12 * 0x1p-24 * 12);
}

TEST_CASE("linear and conv2d: refuse dtypes that do not go together") {
  const Tensor x = convert(random_tensor({2, 3}, DType::f32, 1), DType::f16);
  CHECK_THROWS_AS(linear(x, convert(random_tensor({4, 3}, DType::f32, 2), DType::bf16)), InvalidArgument);
  CHECK_THROWS_AS(linear(x, random_tensor({4, 3}, DType::f64, 2)), InvalidArgument);
  CHECK_THROWS_AS(linear(convert(x, DType::f32), convert(random_tensor({4, 3}, DType::f32, 2), DType::bf16)), InvalidArgument);
  CHECK_THROWS_AS(linear(x, random_tensor({4, 3}, DType::f32, 2), convert(random_tensor({4}, DType::f32, 2), DType::bf16)),
                  InvalidArgument);
  CHECK_THROWS_AS(matmul(x, random_tensor({3, 4}, DType::f32, 2)), InvalidArgument);
  CHECK_THROWS_AS(conv2d(convert(random_tensor({1, 1, 4, 4}, DType::f32, 1), DType::f16),
                         convert(random_tensor({1, 1, 2, 2}, DType::f32, 2), DType::bf16)),
                  InvalidArgument);
}
