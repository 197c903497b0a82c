#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

Tensor summed(const Tensor& x, const Shape& out_shape, double scale = 1) {
  const Tensor out = full(out_shape, -77, x.dtype());
  Tensor scratch;
  if (const std::int64_t numel = sum_scratch_numel(x.shape(), out_shape)) scratch = empty({numel}, x.dtype());
  launch(Sum{.x = x, .scale = scale, .out = out, .scratch = scratch});
  return out;
}

// Adds every element to the output it belongs to.
std::vector<double> reference(const Tensor& x, const Shape& out_shape) {
  std::vector<double> sums(std::size_t(numel_of(out_shape))), values = x.to_vector<double>();
  const Strides strides = contiguous_strides(out_shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = 1; d <= x.num_dims(); ++d) {
      const std::int64_t extent = x.dim(-d), index = rest % extent;
      rest /= extent;
      if (d <= out_shape.size() && out_shape[out_shape.size() - d] != 1) at += index * strides[out_shape.size() - d];
    }
    sums[std::size_t(at)] += values[std::size_t(i)];
  }
  return sums;
}

}  // namespace

TEST_CASE("sum: any set of dims") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape :
         {Shape{3, 5, 1, 7}, Shape{2, 3, 4, 5}, Shape{33, 1, 31}, Shape{1, 1}, Shape{600, 2, 3, 2}, Shape{2, 300, 2, 300}}) {
      const Tensor x = random_tensor(shape, dtype, 11);
      for (int mask = 0; mask < (1 << shape.size()); ++mask) {
        Shape out = shape;
        for (int d = 0; d < shape.size(); ++d) {
          if (mask >> d & 1) out[d] = 1;
        }
        INFO(dtype << " " << shape << " -> " << out);
        CHECK(error_against(summed(x, out), reference(x, out)) < (dtype == DType::f64 ? 1e-12 : 2e-6));
      }
    }
  }
}

TEST_CASE("sum: leading dims that the output lacks are summed over") {
  const Tensor x = random_tensor({4, 3, 5, 6}, DType::f64, 1);
  for (const Shape& out : {Shape{5, 6}, Shape{6}, Shape{}, Shape{3, 1, 6}, Shape{1}}) {
    CHECK(error_against(summed(x, out), reference(x, out)) < 1e-12);
  }
}

TEST_CASE("sum: hostile sizes, as rows, columns and in the middle") {
  for (std::int64_t n : {0, 1, 31, 32, 33, 255, 256, 257, 1000, 4095, 4096, 4097, 10000}) {
    for (std::int64_t m : {1, 3, 17, 600}) {
      if (n * m > 1000000) continue;
      const Tensor rows = random_tensor({m, n}, DType::f32, 3), columns = random_tensor({n, m}, DType::f32, 4);
      INFO(n << " " << m);
      CHECK(error_against(summed(rows, {m, 1}), reference(rows, {m, 1})) < 2e-6);
      CHECK(error_against(summed(columns, {1, m}), reference(columns, {1, m})) < 2e-6);
      const Tensor middle = random_tensor({2, n, m}, DType::f32, 5);
      CHECK(error_against(summed(middle, {2, 1, m}), reference(middle, {2, 1, m})) < 2e-6);
    }
  }
}

TEST_CASE("sum: a million equal values lose nothing") {
  const Tensor x = full({1 << 20}, 0.1, DType::f32);
  CHECK(summed(x, {}).item() == Approx(double(0.1f) * (1 << 20)).epsilon(1e-6));
  CHECK(summed(view::reshape(x, {1 << 12, 1 << 8}), {1, 1 << 8}).to_vector<double>()[17] == Approx(double(0.1f) * (1 << 12)).epsilon(1e-6));
  CHECK(summed(x, {}, 1.0 / (1 << 20)).item() == Approx(0.1));
}

TEST_CASE("sum: small integers are exact and thread counts do not show") {
  std::vector<float> values(300 * 1001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(int(i % 7) - 3);
  const Tensor x = from_values(values, {300, 1001});
  CHECK(summed(x, {}).to_vector<double>() == reference(x, {}));
  CHECK(summed(x, {300, 1}).to_vector<double>() == reference(x, {300, 1}));
  CHECK(summed(x, {1, 1001}).to_vector<double>() == reference(x, {1, 1001}));
  const Tensor y = random_tensor({700, 513}, DType::f32, 9);
  CHECK(same_on_all_threads([&] { return std::vector<Tensor>{summed(y, {}), summed(y, {700, 1}), summed(y, {1, 513})}; }));
}

TEST_CASE("sum: a row's sum does not depend on how many rows there are") {
  const Tensor x = random_tensor({50, 777}, DType::f32, 2), all = summed(x, {50, 1});
  for (std::int64_t row : {0, 13, 49}) CHECK(same_bits(summed(view::slice(x, 0, row, row + 1), {1, 1}), view::slice(all, 0, row, row + 1)));
}

TEST_CASE("sum: wrong scratch or shapes are refused") {
  const Tensor x = zeros({1000, 20}, DType::f32);
  CHECK_THROWS_AS(launch(Sum{.x = x, .out = zeros({20}, DType::f32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Sum{.x = x, .out = zeros({21}, DType::f32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Sum{.x = view::transpose(x, 0, 1), .out = zeros({}, DType::f32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Sum{.x = zeros({3}, DType::i64), .out = zeros({}, DType::i64)}), InvalidArgument);
}

TEST_CASE("squared_norm: double accumulation, without overflow and without thread counts") {
  const auto norm = [](const Tensor& x) {
    const Tensor out = empty({}, DType::f64);
    launch(SquaredNorm{.x = x, .out = out, .scratch = empty({squared_norm_scratch_numel(x.numel())}, DType::f64)});
    return out;
  };
  CHECK(norm(full({1000}, 1e30, DType::f32)).item() == Approx(1000 * double(1e30f) * double(1e30f)));
  CHECK(norm(full({7}, 1e-30, DType::f32)).item() == Approx(7 * double(1e-30f) * double(1e-30f)));
  for (std::int64_t n : {0, 1, 31, 32, 33, 8191, 8192, 8193, 100000}) {
    for (DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor({n}, dtype, 3);
      double expected = 0;
      for (double v : x.to_vector<double>()) expected += v * v;
      CHECK(norm(x).item() == Approx(expected).epsilon(1e-12));
    }
  }
  const Tensor big = random_tensor({123457}, DType::f32, 4);
  CHECK(same_on_all_threads([&] { return std::vector<Tensor>{norm(big)}; }));
}

TEST_CASE("squared_norms: the bits of each alone; a guard becomes NaN with the first norm that is not finite") {
  const std::vector<Tensor> tensors{random_tensor({20000}, DType::f32, 1), random_tensor({0}, DType::bf16, 2), random_tensor({31}, DType::f64, 3),
                                    full({5}, HUGE_VAL, DType::f16), random_tensor({9000}, DType::f16, 4)};
  const std::vector<In> x(tensors.begin(), tensors.end());
  CHECK(squared_norms_scratch_numel(x, DeviceKind::cpu) == 3);
  CHECK(squared_norms_scratch_numel(x, DeviceKind::cuda) == 3 + 1 + 1 + 1 + 2);
  const Tensor out = full({5}, -1, DType::f64), guard = zeros({1}, DType::f64);
  launch(SquaredNorms{.x = x, .out = out, .scratch = empty({3}, DType::f64)});
  const std::vector<double> values = out.to_vector<double>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor alone = empty({1}, DType::f64);
    launch(SquaredNorm{.x = tensors[i], .out = alone, .scratch = empty({squared_norm_scratch_numel(tensors[i].numel())}, DType::f64), .guard = guard});
    CHECK(alone.item() == values[i]);
    CHECK((guard.item() == 0) == (i < 3));
  }
}
