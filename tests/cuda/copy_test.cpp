// Strided copies and fills on CUDA against those of the host.
#include <refrain/core/cuda/copy.h>
#include <refrain/tests/cuda/layouts.h>
#include <refrain/tests/cuda/strided_cases.h>

#include <map>

using namespace refrain;

namespace {

// Distinct small integers, exact in every dtype (bool: 0 and 1).
Tensor counted(const Shape& shape, DType dtype) {
  std::vector<double> values(std::size_t(numel_of(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(i * 7 % (dtype == DType::boolean ? 2 : 251));
  const Tensor t = from_values(values, shape), out = empty(shape, dtype);
  launch(Convert{.x = t, .out = out});
  return out;
}

const Shape kShapes[] = {{}, {3, 0, 2}, {33}, {1000}, {33, 65}, {40, 70}, {3, 9, 34}, {2, 8, 3, 16}};

}  // namespace

TEST_CASE("cuda copy: every layout to every layout, elements of 1, 2, 4 and 8 bytes") {
  for (DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    for (const Shape& shape : kShapes) {
      const Tensor values = counted(shape, dtype);
      const auto targets = cuda_layouts(full(shape, 1, dtype));
      for (const auto& [from_name, from] : cuda_layouts(values)) {
        CHECK(same_bits(on_cpu(from), values));
        for (const auto& [to_name, to] : targets) {
          INFO(dtype << " " << shape << " from " << from_name << " to " << to_name);
          fill_values(to, 1);
          copy_values(to, from);
          CHECK(same_bits(on_cpu(to), values));
        }
      }
    }
  }
}

TEST_CASE("cuda copy: every permutation of four dims") {
  for (const Shape& shape : {Shape{2, 9, 5, 33}, Shape{8, 2, 3, 8}}) {
    const Tensor values = counted(shape, DType::bf16), x = on_cuda(values);
    Dims order{0, 1, 2, 3};
    do {
      INFO(order);
      CHECK(same_bits(on_cpu(contiguous_values(view::permute(x, order))), view::permute(values, order)));
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("cuda copy: nothing beside the target is written") {
  for (DType dtype : {DType::u8, DType::f16, DType::f32, DType::f64}) {
    for (std::int64_t shift : {0, 1, 3}) {
      for (std::int64_t numel : {1, 15, 33, 1000}) {
        const CudaGuarded to({numel}, dtype, shift);
        const Tensor values = counted({numel}, dtype);
        copy_values(to.tensor, on_cuda(values));
        CHECK(same_bits(on_cpu(to.tensor), values));
        CHECK(to.is_intact());
      }
    }
  }
}

TEST_CASE("cuda copy: one element is repeated along an expanded dim") {
  const Tensor values = counted({5, 1, 3}, DType::f32), x = view::expand(on_cuda(values), {5, 40, 3});
  CHECK(same_bits(on_cpu(contiguous_values(x)), view::expand(values, {5, 40, 3})));
}

TEST_CASE("cuda copy: a run moves onto itself, both ways") {
  const Cuda device = cuda_device().state().range->cuda();
  for (DType dtype : {DType::u8, DType::f16, DType::f32, DType::i64}) {
    for (std::int64_t by : {1, 31, 1024}) {
      const std::int64_t numel = 3000;
      const Tensor values = counted({numel + by}, dtype);
      const int size = int(size_of(dtype));
      for (bool is_upwards : {false, true}) {
        const Tensor x = on_cuda(values), low = view::slice(x, 0, 0, numel), high = view::slice(x, 0, by, numel + by);
        const Tensor &to = is_upwards ? low : high, &from = is_upwards ? high : low;
        cuda::copy_strided(device, {numel}, size, to.address(), {1}, from.address(), {1});
        CHECK(same_bits(on_cpu(to), is_upwards ? view::slice(values, 0, by, numel + by) : view::slice(values, 0, 0, numel)));
      }
    }
  }
}

TEST_CASE("cuda fill: every layout, dtype and pattern") {
  for (DType dtype : kAllDTypes) {
    for (double value : {0.0, dtype == DType::boolean ? 1.0 : 77.0}) {
      for (const Shape& shape : {Shape{}, Shape{3, 0, 2}, Shape{33}, Shape{5, 70}, Shape{2, 3, 17}}) {
        for (const auto& [name, t] : cuda_layouts(full(shape, 1, dtype))) {
          INFO(dtype << " " << shape << " " << name << " " << value);
          fill_values(t, value);
          CHECK(same_bits(on_cpu(t), full(shape, value, dtype)));
        }
      }
      for (std::int64_t shift : {0, 1, 5}) {
        for (std::int64_t numel : {1, 7, 1000}) {
          const CudaGuarded to({numel}, dtype, shift);
          fill_values(to.tensor, value);
          CHECK(same_bits(on_cpu(to.tensor), full({numel}, value, dtype)));
          CHECK(to.is_intact());
        }
      }
    }
  }
}

TEST_CASE("cuda strided index: parts that 32 bits address cover a view once") {
  struct Case {
    Shape shape;
    Strides to, from;
  };
  const Case cases[] = {
      {{7, 33, 5}, {165, 5, 1}, {1, 35, 7}}, {{500}, {1}, {3}}, {{2, 3, 4}, {12, 4, 1}, {0, 1, 0}}, {{24, 20}, {20, 1}, {1, 24}}};
  for (const Case& c : cases) {
    for (std::int64_t limit : {std::int64_t{20}, std::int64_t{100}, std::int64_t{1000}, std::int64_t{1} << 31}) {
      INFO(c.shape << " " << limit);
      const StridedOffsets got = strided_offsets(c.shape, c.to, c.from, limit);
      std::map<std::int64_t, std::int64_t> expected, pairs;  // `to` is contiguous: an offset names its element
      for (std::int64_t i = 0; i < numel_of(c.shape); ++i) {
        std::int64_t rest = i, from = 0;
        for (int d = c.shape.size() - 1; d >= 0; --d) from += rest % c.shape[d] * c.from[d], rest /= c.shape[d];
        expected[i] = from;
      }
      for (std::size_t i = 0; i < got.to.size(); ++i) pairs[got.to[i]] = got.from[i];
      CHECK(got.to.size() == expected.size());
      CHECK(pairs == expected);
      const std::int64_t span = std::max(*std::max_element(got.from.begin(), got.from.end()), numel_of(c.shape) - 1);
      CHECK((got.num_parts > 1) == (span >= limit));
    }
  }
}

TEST_CASE("cuda strided index: quotients by any divisor are exact below 2^31") {
  std::vector<std::uint32_t> numbers{0, 1, 2, 3, 0x7ffffffe, 0x7fffffff};
  for (double v : random_values(250, 7, 0, 0x1p31)) numbers.push_back(std::uint32_t(v));
  for (std::int64_t divisor :
       {1, 2, 3, 5, 7, 31, 32, 33, 641, 1000, 65535, 65536, 65537, 0x3fffffff, 0x40000000, 0x7ffffffe, 0x7fffffff}) {
    std::vector<std::uint32_t> all = numbers, expected;
    for (std::int64_t k : {1, 2, 1000}) {
      if (k * divisor > 0x7fffffff) continue;
      all.push_back(std::uint32_t(k * divisor)), all.push_back(std::uint32_t(k * divisor - 1));
    }
    for (std::uint32_t n : all) expected.push_back(std::uint32_t(n / divisor));
    INFO(divisor);
    CHECK(quotients(all, divisor) == expected);
  }
}
