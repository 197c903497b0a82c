// Softmax in f16 and bf16. u is the relative change by one rounding, 2^-11 (f16) or 2^-8 (bf16).
#include <refrain/core/view.h>
#include <refrain/kernels/softmax/softmax.h>
#include <refrain/tests/support/half.h>

using namespace refrain;

namespace {

Tensor softmax(const Tensor& x, int dim, bool is_log = false) {
  const Guarded out(x.shape(), x.dtype());
  launch(SoftmaxForward{.x = x, .dim = dim, .is_log = is_log, .out = out.tensor});
  CHECK(out.is_intact());
  return out.tensor;
}

Tensor softmax_backward(const Tensor& y, const Tensor& grad_out, int dim, bool is_log = false) {
  const Guarded out(y.shape(), y.dtype());
  launch(SoftmaxBackward{.y = y, .grad_out = grad_out, .dim = dim, .is_log = is_log, .out = out.tensor});
  CHECK(out.is_intact());
  return out.tensor;
}

// Calls f(first, step, length) for each line along dim.
template <class F>
void for_lines(const Shape& shape, int dim, F&& f) {
  std::int64_t inner = 1, outer = 1;
  for (int d = 0; d < dim; ++d) outer *= shape[d];
  for (int d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) f(std::size_t(o * shape[dim] * inner + i), std::size_t(inner), std::size_t(shape[dim]));
  }
}

}  // namespace

// e = exp(x - m) in f32: x - m is rounded by 2^-24·d, d = |x - m|, which e turns into a relative error of as much, and exp()
// adds 4·2^-24; the sum of n terms inherits that, with d at most D = 16 here, and adds (n / 8 + 4)·2^-24; the reciprocal and
// the product add 2·2^-24. Then one rounding: |y - p| <= (u + (d + D + n / 8 + 14)·2^-24)·p.
// The logarithm: |y - l| <= u·|l| + (2·d + |log(sum)| + D + n / 8 + 10)·2^-24.
TEST_CASE("softmax in 16 bits: one rounding of the exact result, over any dim") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{1}, Shape{0, 3}, Shape{3, 0}, Shape{33}, Shape{5, 31}, Shape{31, 5}, Shape{3, 1000}, Shape{2, 2048},
                               Shape{2, 2049}, Shape{7, 4, 9}, Shape{3, 33, 17}}) {
      const Tensor x = random_tensor(shape, half, 5, -8, 8);
      const std::vector<double> values = x.to_vector<double>();
      for (int dim = 0; dim < shape.size(); ++dim) {
        std::vector<double> p(values.size()), l(values.size()), difference(values.size()), log_sum(values.size());
        for_lines(shape, dim, [&](std::size_t first, std::size_t step, std::size_t length) {
          double m = -HUGE_VAL, sum = 0;
          for (std::size_t j = 0; j < length; ++j) m = std::max(m, values[first + j * step]);
          for (std::size_t j = 0; j < length; ++j) sum += std::exp(values[first + j * step] - m);
          for (std::size_t j = 0; j < length; ++j) {
            const std::size_t i = first + j * step;
            difference[i] = m - values[i], log_sum[i] = std::log(sum);
            p[i] = std::exp(values[i] - m) / sum, l[i] = values[i] - m - log_sum[i];
          }
        });
        const double n = shape[dim] / 8.0 + 10, u = roundoff_of(half);
        INFO(half << " " << shape << " " << dim);
        CHECK(num_outside(softmax(x, dim), p, [&](std::size_t i, double e) {
                return (u + (difference[i] + 16 + n + 4) * 0x1p-24) * e + underflow_of(half);
              }) == 0);
        CHECK(num_outside(softmax(x, dim, true), l, [&](std::size_t i, double e) {
                return u * std::abs(e) + 0x1p-24 * (2 * difference[i] + std::abs(log_sum[i]) + 16 + n) + underflow_of(half);
              }) == 0);
        for (bool is_log : {false, true}) {
          // The f32 kernel's result, rounded: sums are the same ones.
          CHECK(num_different(softmax(x, dim, is_log), as(softmax(as(x, DType::f32), dim, is_log), half)) == 0);
        }
      }
    }
  }
}

// s = Σ g·y in f32: |s' - s| <= (n / 16 + 4)·2^-24·Σ|g·y|; g - s and the product add two roundings of f32, then one of ours:
// |dx - ref| <= u·|ref| + 2^-24·(n / 16 + 8)·y·(|g| + Σ|g·y|).
TEST_CASE("softmax backward in 16 bits: sums in f32, one rounding, from the rounded output") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{5, 31}, Shape{31, 5}, Shape{3, 1000}, Shape{3, 33, 17}}) {
      const Tensor x = random_tensor(shape, half, 5, -4, 4), g = random_tensor(shape, half, 6);
      for (int dim = 0; dim < shape.size(); ++dim) {
        for (bool is_log : {false, true}) {
          const Tensor y = softmax(x, dim, is_log), got = softmax_backward(y, g, dim, is_log);
          const std::vector<double> vy = y.to_vector<double>(), vg = g.to_vector<double>();
          std::vector<double> expected(vy.size()), scale(vy.size());
          for_lines(shape, dim, [&](std::size_t first, std::size_t step, std::size_t length) {
            double sum = 0, magnitude = 0;
            for (std::size_t i = first, j = 0; j < length; ++j, i += step) {
              const double term = is_log ? vg[i] : vg[i] * vy[i];
              sum += term, magnitude += std::abs(term);
            }
            for (std::size_t i = first, j = 0; j < length; ++j, i += step) {
              const double p = is_log ? std::exp(vy[i]) : vy[i];
              expected[i] = is_log ? vg[i] - p * sum : p * (vg[i] - sum);
              scale[i] = (is_log ? 1 : p) * (std::abs(vg[i]) + magnitude);
            }
          });
          INFO(half << " " << shape << " " << dim << " " << is_log);
          CHECK(num_outside(got, expected, [&](std::size_t i, double e) {
                  return roundoff_of(half) * std::abs(e) + 0x1p-24 * (shape[dim] / 4.0 + 8) * scale[i] + underflow_of(half);
                }) == 0);
          CHECK(num_different(got, as(softmax_backward(as(y, DType::f32), as(g, DType::f32), dim, is_log), half)) == 0);
        }
      }
    }
  }
}

TEST_CASE("softmax in 16 bits: masked entries are 0, a row masked as a whole is finite, and so are its gradients") {
  for (DType half : kHalves) {
    // -1e9 and -65504 - 16 are -inf in f16, and so is what people add to scores as a mask.
    for (double mask : {-HUGE_VAL, -1e9, largest_of(half) * -1.0}) {
      const Tensor x = tensor_of({1, 2, mask}, {1, 3}, half), y = softmax(x, 1);
      INFO(half << " " << mask);
      CHECK(num_outside(y, {0.26894142, 0.73105858, 0}, [&](std::size_t, double e) { return roundoff_of(half) * e + 1e-8; }) == 0);
      const Tensor grad = softmax_backward(y, tensor_of({1, -2, 3}, {1, 3}, half), 1);
      // y·(g - Σ g·y) with Σ g·y = p0 - 2·p1; y's rounding comes in through g·y, thrice at most.
      CHECK(num_outside(grad, {0.589837, -0.589837, 0}, [&](std::size_t, double) { return 4 * roundoff_of(half); }) == 0);
      CHECK(grad.to_vector<double>()[2] == 0);
    }
    const Tensor all = full({1, 40}, -HUGE_VAL, half);
    for (int dim : {0, 1}) {
      CHECK(softmax(all, dim).to_vector<double>() == std::vector<double>(40, 0));
      CHECK(softmax_backward(softmax(all, dim), full({1, 40}, 3, half), dim).to_vector<double>() == std::vector<double>(40, 0));
      CHECK(softmax(all, dim, true).to_vector<double>() == std::vector<double>(40, -HUGE_VAL));
      CHECK(softmax_backward(softmax(all, dim, true), full({1, 40}, 3, half), dim, true).to_vector<double>() == std::vector<double>(40, 3));
    }
    // Finite, but a whole row of the lowest value: uniform.
    CHECK(softmax(full({1, 32}, -largest_of(half), half), 1).to_vector<double>() == std::vector<double>(32, 1.0 / 32));
    // Differences beyond f16's range, and large means.
    CHECK(softmax(tensor_of({65504, -65504, 65504}, {3}, half), 0).to_vector<double>() == std::vector<double>{0.5, 0, 0.5});
    CHECK(std::isnan(softmax(tensor_of({1, NAN, 3}, {3}, half), 0).to_vector<double>()[0]));
  }
}

TEST_CASE("softmax in 16 bits: a row's bits depend on that row alone, on any number of threads") {
  for (DType half : kHalves) {
    const Tensor x = random_tensor({500, 97}, half, 1, -9, 9), y = softmax(x, 1);
    for (std::int64_t row : {0, 7, 499})
      CHECK(same_bits(softmax(clone(view::slice(x, 0, row, row + 1)), 1), view::slice(y, 0, row, row + 1)));
    CHECK(same_on_all_threads([&] {
      return std::vector<Tensor>{softmax(x, 0), softmax(x, 1), softmax_backward(y, x, 1), softmax_backward(y, x, 0)};
    }));
  }
}
