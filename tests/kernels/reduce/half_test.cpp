// Reductions in f16 and bf16. u is the relative change by one rounding, 2^-11 (f16) or 2^-8 (bf16).
#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/tests/support/half.h>

using namespace refrain;

namespace {

Tensor summed(const Tensor& x, const Shape& shape, DType dtype, double scale = 1) {
  const Guarded out(shape, dtype);
  Tensor scratch;
  if (const std::int64_t numel = sum_scratch_numel(x.shape(), shape)) scratch = empty({numel}, accumulator_dtype(x.dtype()));
  launch(Sum{.x = x, .scale = scale, .out = out.tensor, .scratch = scratch});
  CHECK(out.is_intact());
  return out.tensor;
}

// Adds f(element) to the output it belongs to.
template <class F>
std::vector<double> reference(const Tensor& x, const Shape& shape, F&& f) {
  std::vector<double> sums(std::size_t(numel_of(shape))), values = x.to_vector<double>();
  const Strides strides = contiguous_strides(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = 1; d <= x.num_dims(); ++d) {
      const std::int64_t index = rest % x.dim(-d);
      rest /= x.dim(-d);
      if (d <= shape.size() && shape[shape.size() - d] != 1) at += index * strides[shape.size() - d];
    }
    sums[std::size_t(at)] += f(values[std::size_t(i)]);
  }
  return sums;
}

double square(double v) { return v * v; }

}  // namespace

// Blocks of at most 4,096 terms are added in f32: along a row in 64 or fewer (4 vectors of 16) chains, hence at most
// 4096 / 16 + 8 roundings a term on 4-lane vectors (4 chains of 4), across rows in groups of four, 256 / 4 + 2. Block sums
// are added in f64. So |y - s| <= u·|s| + 264·2^-24·Σ|x|, whatever the number of terms.
TEST_CASE("sum in 16 bits: f32 sums, one rounding, for any set of dims and hostile sizes") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{3, 5, 1, 7}, Shape{0, 4}, Shape{4, 0}, Shape{33, 31}, Shape{600, 2, 3, 2}, Shape{2, 300, 2, 300},
                               Shape{1, 10000}, Shape{10000, 1}, Shape{4097, 33}, Shape{5, 4097}}) {
      const Tensor x = random_tensor(shape, half, 11);
      for (int mask = 0; mask < (1 << shape.size()); ++mask) {
        Shape out = shape;
        for (int d = 0; d < shape.size(); ++d) {
          if (mask >> d & 1) out[d] = 1;
        }
        const std::vector<double> expected = reference(x, out, [](double v) { return v; }),
                                  magnitude = reference(x, out, [](double v) { return std::abs(v); });
        INFO(half << " " << shape << " -> " << out);
        CHECK(num_outside(summed(x, out, half), expected, [&](std::size_t i, double e) {
                return roundoff_of(half) * std::abs(e) + 264 * 0x1p-24 * magnitude[i] + underflow_of(half);
              }) == 0);
        CHECK(num_outside(summed(x, out, DType::f32), expected,
                          [&](std::size_t i, double e) { return 0x1p-24 * std::abs(e) + 264 * 0x1p-24 * magnitude[i]; }) == 0);
        // The very sums of f32, the result in either type.
        const Tensor wide = as(x, DType::f32);
        CHECK(same_bits(summed(x, out, DType::f32), summed(wide, out, DType::f32)));
        CHECK(same_bits(summed(x, out, half), summed(wide, out, half)));
      }
    }
  }
}

TEST_CASE("sum in 16 bits: partial sums may pass 65,504, small terms are not lost in large sums") {
  const Tensor x = full({2, 3000}, 60000, DType::f16);
  copy_values(view::slice(x, 0, 1, 2), full({1, 3000}, -60000, DType::f16));
  CHECK(summed(x, {}, DType::f16).item() == 0);
  CHECK(summed(x, {1, 3000}, DType::f16).to_vector<double>() == std::vector<double>(3000));
  CHECK(summed(full({3000}, 60000, DType::f16), {}, DType::f16, 1.0 / 3000).item() == 60000);
  CHECK(std::isinf(summed(full({3000}, 60000, DType::f16), {}, DType::f16).item()));
  // In 16 bits a running sum of ones would stop at 256 (bf16) or 2,048 (f16).
  for (DType half : kHalves) {
    CHECK(summed(full({32768}, 1, half), {}, half).item() == 32768);
    CHECK(summed(full({32768, 3}, 1, half), {3}, half).to_vector<double>() == std::vector<double>(3, 32768));
    CHECK(std::isnan(summed(full({40}, NAN, half), {}, half).item()));
    CHECK(summed(full({0, 3}, 1, half), {3}, DType::f32).to_vector<double>() == std::vector<double>(3));
  }
}

// A mean's double result goes to 16 bits in one step: rounding to f32 first would meet a tie here.
TEST_CASE("sum in 16 bits: the result is rounded once, not to f32 first") {
  const Tensor x = tensor_of({1, 0x1p-11, 0x1p-40}, {3}, DType::f32);
  const Tensor blocks = zeros({3 * 4096}, DType::f32);  // each term in a block of its own
  for (std::int64_t i = 0; i < 3; ++i) blocks.data<float>()[i * 4096] = x.data<float>()[i];
  CHECK(summed(blocks, {}, DType::f16).item() == 1 + 0x1p-10);
}

TEST_CASE("sum in 16 bits: bits do not depend on threads") {
  for (DType half : kHalves) {
    const Tensor x = random_tensor({300, 1000}, half, 2);
    CHECK(same_on_all_threads([&] {
      return std::vector<Tensor>{summed(x, {}, half), summed(x, {1000}, half), summed(x, {300, 1}, half), summed(x, {1000}, DType::f32)};
    }));
  }
}

TEST_CASE("squared norm in 16 bits: squares above 65,504 and below the least f16 count") {
  const auto norm = [](const Tensor& x) {
    const Tensor out = empty({}, DType::f64);
    launch(SquaredNorm{.x = x, .out = out, .scratch = empty({squared_norm_scratch_numel(x.numel())}, DType::f64)});
    return out.item();
  };
  for (DType half : kHalves) {
    for (std::int64_t n : {0, 1, 7, 8, 9, 31, 33, 1000, 8193, 20001}) {
      const Tensor x = random_tensor({n}, half, 3, -100, 100);
      const double expected = n == 0 ? 0 : reference(x, {}, square)[0];
      INFO(half << " " << n);
      CHECK(std::abs(norm(x) - expected) <= 1e-12 * expected);
    }
    CHECK(norm(full({100}, 60000, half)) == 100 * square(full({}, 60000, half).item()));
    CHECK(norm(full({64}, 0x1p-20, half)) == 0x1p-34);
    CHECK(std::isinf(norm(full({3}, HUGE_VAL, half))));
    CHECK(std::isnan(norm(full({3}, NAN, half))));
    const Tensor x = random_tensor({100003}, half, 3);
    CHECK(norm(x) == norm(as(x, DType::f32)));
  }
}

TEST_CASE("max in 16 bits: values and indices are those of f32, NaN wins") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{3, 31}, Shape{31, 3}, Shape{2, 1000}, Shape{5, 7, 9}}) {
      for (bool has_nan : {false, true}) {
        const Tensor x = random_tensor(shape, half, 8, -3, -1);  // many ties in so few bits
        if (has_nan) fill_values(view::slice(view::reshape(x, {-1}), 0, x.numel() / 2, x.numel() / 2 + 1), NAN);
        for (int dim = 0; dim < shape.size(); ++dim) {
          Shape reduced = shape;
          reduced.erase(dim);
          const auto run = [&](const Tensor& in) {
            std::vector<Tensor> result{empty(reduced, in.dtype()), empty(reduced, DType::i64)};
            launch(Max{.x = in, .dim = dim, .out = result[0], .indices = result[1]});
            return result;
          };
          const auto got = run(x), wide = run(as(x, DType::f32));
          INFO(half << " " << shape << " " << dim);
          CHECK(num_different(got[0], as(wide[0], half)) == 0);
          CHECK(same_bits(got[1], wide[1]));
          const Tensor grad = random_tensor(reduced, half, 4), out = empty(shape, half), wide_out = empty(shape, DType::f32);
          launch(MaxBackward{.grad_out = grad, .indices = got[1], .dim = dim, .out = out});
          launch(MaxBackward{.grad_out = as(grad, DType::f32), .indices = got[1], .dim = dim, .out = wide_out});
          CHECK(same_bits(as(out, DType::f32), wide_out));
        }
      }
    }
  }
}

TEST_CASE("sum: other pairs of dtypes are refused") {
  const auto run = [](DType x, DType out) { return message_of([&] { launch(Sum{.x = zeros({3}, x), .out = zeros({}, out)}); }); };
  CHECK(run(DType::f16, DType::bf16) == "sum: out of x's dtype f16, or between f32 and a 16-bit type, expected, got bf16");
  CHECK(!run(DType::f64, DType::f32).empty());
  CHECK(!run(DType::f32, DType::f64).empty());
  CHECK(message_of([] { launch(Sum{.x = zeros({9000}, DType::f16), .out = zeros({}, DType::f16), .scratch = zeros({3}, DType::f16)}); }) ==
        "sum: scratch must be f32, got f16");
}
