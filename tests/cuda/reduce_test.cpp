// Reductions on CUDA against the CPU's: exact sums bit for bit, others within a bound on a sum in any order.
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/value_range.h>
#include <refrain/tests/cuda/layouts.h>
#include <refrain/tests/support/half_bounds.h>

using namespace refrain;

namespace {

Tensor whole_numbers(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::vector<double> values = random_values(numel_of(shape), seed, -4, 5);
  for (double& v : values) v = std::floor(v);
  return tensor_of(values, shape, dtype);
}

Tensor summed(const Tensor& x, const Shape& shape, DType dtype, double scale) {
  const Tensor out = poisoned(shape, dtype, x.device());
  Tensor scratch;
  if (const std::int64_t numel = sum_scratch_numel(x.shape(), shape))
    scratch = poisoned({numel}, accumulator_dtype(x.dtype()), x.device());
  launch(Sum{.x = x, .scale = scale, .out = out, .scratch = scratch});
  return out;
}

// Every set of dims that may be summed over.
std::vector<Shape> sums_of(const Shape& shape) {
  std::vector<Shape> result;
  for (int mask = 0; mask < (1 << shape.size()); ++mask) {
    Shape out = shape;
    for (int d = 0; d < shape.size(); ++d) {
      if (mask >> d & 1) out[d] = 1;
    }
    if (mask != 0 || numel_of(shape) < 1000) result.push_back(out);
  }
  return result;
}

const Shape kShapes[] = {{},           {0},      {1},         {33},        {3, 0, 2},
                         {3, 5, 1, 7}, {33, 31}, {300, 2, 3}, {2, 600, 9}, {2, 3, 270, 5},
                         {2, 5000},    {9000},   {5, 1025},   {3, 2049},   {257, 70}};

}  // namespace

TEST_CASE("cuda sum: whole numbers have the CPU's bits, over any dims, in every dtype") {
  for (const Shape& shape : kShapes) {
    for (DType dtype : kFloats) {
      const Tensor x = whole_numbers(shape, dtype, 1), device_x = on_cuda(x);
      std::vector<DType> results{dtype};
      if (dtype == DType::f32) results = {dtype, DType::f16, DType::bf16};
      if (is_16_bit(dtype)) results.push_back(DType::f32);
      const std::vector<Shape> outs = sums_of(shape);
      const std::size_t step = dtype == DType::f32 || outs.size() < 8 ? 1 : 3;  // the dims are cut up alike for every dtype
      for (std::size_t i = std::size_t(dtype) % step; i < outs.size(); i += step) {
        const Shape& out = outs[i];
        for (DType result : results) {
          INFO(shape << " " << dtype << " to " << out << " " << result);
          CHECK(same_bits(on_cpu(summed(device_x, out, result, 0.5)), summed(x, out, result, 0.5)));
        }
      }
    }
  }
}

TEST_CASE("cuda sum: leading dims that the output lacks are summed over") {
  const Tensor x = whole_numbers({4, 3, 5, 6}, DType::bf16, 1);
  for (const Shape& out : {Shape{5, 6}, Shape{6}, Shape{}, Shape{3, 1, 6}, Shape{1}})
    CHECK(same_bits(on_cpu(summed(on_cuda(x), out, DType::f32, 1)), summed(x, out, DType::f32, 1)));
}

TEST_CASE("cuda sum: any values are within what a sum in any order loses, and alignment does not show") {
  for (const Shape& shape : {Shape{5, 1025}, Shape{9000}, Shape{257, 130}, Shape{2, 300, 9}, Shape{7, 24}}) {
    for (DType dtype : kFloats) {
      const Tensor x = random_tensor(shape, dtype, 3), exact = as(x, DType::f64), absolute = empty(shape, DType::f64);
      launch(Unary{.op = UnaryOp::abs, .x = exact, .out = absolute});
      for (const Shape& out : sums_of(shape)) {
        INFO(shape << " " << dtype << " to " << out);
        const DType result = is_16_bit(dtype) ? DType::f32 : dtype;
        const Tensor got = summed(on_cuda(x), out, result, 1);
        const std::vector<double> terms = summed(absolute, out, DType::f64, 1).to_vector<double>();
        const double terms_each = double(x.numel()) / double(std::max<std::int64_t>(1, numel_of(out)));
        const double unit = dtype == DType::f64 ? 0x1p-53 : testing::kWide;
        CHECK(num_outside(on_cpu(got), summed(exact, out, DType::f64, 1).to_vector<double>(),
                          [&](std::size_t i, double) { return 2 * (terms_each + 2) * unit * terms[i]; }) == 0);
        const CudaGuarded shifted(x, 1);
        CHECK(same_bits(on_cpu(summed(shifted.tensor, out, result, 1)), on_cpu(got)));
      }
    }
  }
}

TEST_CASE("cuda squared_norm: exact squares, any length, alignment and dtype") {
  for (DType dtype : kFloats) {
    for (std::int64_t n : {0, 1, 31, 33, 1000, 8192, 8193, 20000}) {
      for (std::int64_t shift : {0, 1}) {
        INFO(dtype << " " << n << " " << shift);
        const Tensor x = whole_numbers({n}, dtype, 4), expected = empty({1}, DType::f64);
        launch(SquaredNorm{.x = x, .out = expected, .scratch = empty({squared_norm_scratch_numel(n)}, DType::f64)});
        const CudaGuarded device_x(x, shift);
        const Tensor out = poisoned({1}, DType::f64, cuda_device());
        launch(SquaredNorm{
            .x = device_x.tensor, .out = out, .scratch = poisoned({squared_norm_scratch_numel(n)}, DType::f64, cuda_device())});
        CHECK(same_bits(on_cpu(out), expected));
      }
    }
  }
}

TEST_CASE("cuda squared_norm: f32 values whose squares overflow f32, infinities and NaN") {
  for (double special : {3e38, HUGE_VAL, std::nan("")}) {
    std::vector<double> values(100, 1e-30);
    values[57] = special;
    const Tensor x = tensor_of(values, {100}, DType::f32), out = poisoned({1}, DType::f64, cuda_device());
    launch(SquaredNorm{.x = on_cuda(x), .out = out, .scratch = poisoned({1}, DType::f64, cuda_device())});
    const double expected = double(float(special)) * double(float(special));
    CHECK((std::isnan(expected) ? std::isnan(out.item()) : out.item() == Approx(expected)));
  }
}

TEST_CASE("cuda max and its backward: ties, NaN, infinities, every dim and dtype") {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{3, 1100}, Shape{4, 5, 6}, Shape{2, 70, 3}, Shape{0, 4}, Shape{40, 1}}) {
      for (int special = 0; special < 3; ++special) {
        std::vector<double> values = whole_numbers(shape, dtype, 5).to_vector<double>();  // with many ties
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (special == 1 && i % 7 == 3) values[i] = std::nan("");
          if (special == 2) values[i] = i % 5 == 0 ? -0.0 : i % 3 == 0 ? 0.0 : -HUGE_VAL;
        }
        const Tensor x = tensor_of(values, shape, dtype);
        for (int dim = 0; dim < shape.size(); ++dim) {
          if (shape[dim] == 0) continue;
          INFO(dtype << " " << shape << " along " << dim << " special " << special);
          Shape reduced = shape;
          reduced.erase(dim);
          const Tensor out = full(reduced, 1, dtype), indices = full(reduced, 1, DType::i64);
          launch(Max{.x = x, .dim = dim, .out = out, .indices = indices});
          const CudaGuarded device_out(reduced, dtype), device_indices(reduced, DType::i64);
          launch(Max{.x = on_cuda(x), .dim = dim, .out = device_out.tensor, .indices = device_indices.tensor});
          CHECK(num_different(on_cpu(device_out.tensor), out) == 0);
          CHECK(same_bits(on_cpu(device_indices.tensor), indices));
          CHECK((device_out.is_intact() && device_indices.is_intact()));
          const Tensor alone = poisoned(reduced, dtype, cuda_device());
          launch(Max{.x = on_cuda(x), .dim = dim, .out = alone});
          CHECK(num_different(on_cpu(alone), out) == 0);

          const Tensor g = random_tensor(reduced, dtype, 6), back = full(shape, 1, dtype);
          launch(MaxBackward{.grad_out = g, .indices = indices, .dim = dim, .out = back});
          const CudaGuarded device_back(shape, dtype);
          launch(MaxBackward{.grad_out = on_cuda(g), .indices = device_indices.tensor, .dim = dim, .out = device_back.tensor});
          CHECK(same_bits(on_cpu(device_back.tensor), back));
          CHECK(device_back.is_intact());
        }
      }
    }
  }
}

TEST_CASE("cuda value_range: finite extremes and a count of the others") {
  for (DType dtype : kFloats) {
    for (std::int64_t n : {0, 1, 33, 5000}) {
      for (std::int64_t shift : {0, 1}) {
        INFO(dtype << " " << n << " " << shift);
        std::vector<double> values = random_values(n, 8, -100, 100);
        for (std::size_t i = 0; i < values.size(); i += 11)
          values[i] = i % 3 == 0 ? HUGE_VAL : i % 3 == 1 ? -HUGE_VAL : std::nan("");
        const Tensor x = tensor_of(values, {n}, dtype), expected = full({3}, 1, DType::f64),
                     out = poisoned({3}, DType::f64, cuda_device());
        launch(ValueRange{.x = x, .out = expected});
        const CudaGuarded device_x(x, shift);
        launch(ValueRange{.x = device_x.tensor, .out = out});
        CHECK(same_bits(on_cpu(out), expected));
      }
    }
  }
}
