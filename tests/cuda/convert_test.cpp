// Conversion on CUDA against the CPU's, value by value.
#include <refrain/tests/cuda/layouts.h>

#include <limits>

using namespace refrain;

namespace {

// Values on both sides of every edge of `dtype` and of those it is converted to.
Tensor edges(DType dtype) {
  std::vector<double> values;
  if (is_floating(dtype)) {
    for (double v :
         {0.0,    0.25,         0.5,          0.99,         1.0,     1.5,    2.5,     127.5,        255.0,      255.5,
          256.0,  2147483520.0, 2147483647.0, 2147483648.0, 9.2e18,  9.3e18, 65504.0, 65519.0,      65520.0,    1e38,
          3.4e38, 1e300,        0x1p-24,      0x1.8p-25,    0x1p-25, 6e-5,   0.1,     1.0009765625, 1.00390625, HUGE_VAL})
      values.push_back(v), values.push_back(-v);
    values.push_back(std::nan(""));
    if (dtype != DType::f64)
      for (double& v : values) v = std::isfinite(v) && std::abs(v) > largest_of(dtype) ? largest_of(dtype) : v;
    return tensor_of(values, {std::int64_t(values.size())}, dtype);
  }
  std::vector<std::int64_t> whole{0,
                                  1,
                                  2,
                                  127,
                                  128,
                                  255,
                                  256,
                                  2047,
                                  2049,
                                  2051,
                                  65519,
                                  65520,
                                  16777217,
                                  2147483647,
                                  2147483648,
                                  4294967295,
                                  4294967296,
                                  9007199254740993,
                                  9007199791611905,
                                  std::numeric_limits<std::int64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min()};
  for (std::size_t i = 1, n = whole.size() - 1; i < n; ++i) whole.push_back(-whole[i]);
  const Tensor x = from_values(whole, {std::int64_t(whole.size())}), out = empty(x.shape(), dtype);
  launch(Convert{.x = x, .out = out});
  return out;
}

void check_conversion(const Tensor& x, DType to) {
  INFO(x.dtype() << " to " << to);
  const Tensor expected = as(x, to);
  const CudaGuarded out(x.shape(), to);
  launch(Convert{.x = on_cuda(x), .out = out.tensor});
  CHECK(num_different(on_cpu(out.tensor), expected) == 0);
  CHECK(out.is_intact());
}

}  // namespace

TEST_CASE("cuda convert: every dtype to every other, at the edges of both") {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) check_conversion(edges(from), to);
  }
}

TEST_CASE("cuda convert: all 65,536 values of the 16-bit types") {
  for (DType from : kHalves) {
    for (DType to : {DType::f32, from == DType::f16 ? DType::bf16 : DType::f16}) {
      const Tensor x = all_values(from);
      // bf16's subnormals are f32's, which the CPU flushes.
      const Tensor expected = as(x, to), got = on_cpu(as(on_cuda(x), to));
      CHECK(num_different_when_flushed(got, expected) == 0);
    }
  }
}

TEST_CASE("cuda convert: f32 and f64 round once, at every midpoint between values of f16 and bf16") {
  for (DType to : kHalves) {
    const std::vector<double> halves = all_values(to).to_vector<double>();
    for (DType from : {DType::f32, DType::f64}) {
      std::vector<double> values;
      for (std::size_t i = 0; i + 1 < (to == DType::f16 ? 0x7c00u : 0x7f80u); ++i) {
        const double middle = (halves[i] + halves[i + 1]) / 2;
        if (!std::isfinite(middle) || std::abs(middle) < 0x1p-126) continue;
        const double step =
            from == DType::f32 ? double(std::nextafter(float(middle), HUGE_VALF)) : std::nextafter(middle, HUGE_VAL);
        values.push_back(middle), values.push_back(step), values.push_back(-middle);
      }
      check_conversion(tensor_of(values, {std::int64_t(values.size())}, from), to);
    }
  }
}

TEST_CASE("cuda convert: every layout to every layout") {
  for (const auto& [from_dtype, to_dtype] :
       {std::pair{DType::f32, DType::bf16}, {DType::f16, DType::f32}, {DType::f16, DType::bf16}, {DType::bf16, DType::f16},
        {DType::i64, DType::f32}, {DType::f64, DType::u8}}) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{33}, Shape{5, 40}, Shape{3, 7, 9}}) {
      const Tensor values = as(random_tensor(shape, DType::f64, 5, 0, 100), from_dtype), expected = as(values, to_dtype);
      for (const auto& [from_name, from] : cuda_layouts(values)) {
        for (const auto& [to_name, to] : cuda_layouts(full(shape, 1, to_dtype))) {
          INFO(from_dtype << " " << to_dtype << " " << shape << " " << from_name << " " << to_name);
          launch(Convert{.x = from, .out = to});
          CHECK(num_different(on_cpu(to), expected) == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda convert: an expanded view repeats its elements") {
  const Tensor values = random_tensor({6, 1}, DType::f32, 3), x = view::expand(on_cuda(values), {6, 50});
  const Tensor out = poisoned({6, 50}, DType::f16, cuda_device());
  launch(Convert{.x = x, .out = out});
  CHECK(num_different(on_cpu(out), as(view::expand(values, {6, 50}), DType::f16)) == 0);
}
