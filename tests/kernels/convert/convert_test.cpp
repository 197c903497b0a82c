#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/tests/kernels/elementwise/layouts.h>

#include <bit>
#include <limits>

using namespace refrain;

namespace {

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean};

Tensor converted(const Tensor& x, DType dtype) {
  const Tensor out = empty(x.shape(), dtype);
  launch(Convert{.x = x, .out = out});
  return out;
}

template <class H>
std::uint16_t bits_of(const Tensor& t) {
  return t.data<H>()[0].bits;
}

}  // namespace

TEST_CASE("convert: small whole numbers survive every pair of dtypes") {
  const std::vector<double> values{0, 1, 2, 7, 100, 127};
  for (DType from : kAll) {
    for (DType to : kAll) {
      const Tensor x = converted(from_values(values, {6}), from);
      const bool is_boolean = from == DType::boolean || to == DType::boolean;
      INFO(from << " to " << to);
      CHECK(converted(x, to).to_vector<double>() == (is_boolean ? std::vector<double>{0, 1, 1, 1, 1, 1} : values));
    }
  }
}

TEST_CASE("convert: every f16 and bf16 goes to f32 and back unchanged") {
  for (DType half : {DType::f16, DType::bf16}) {
    const Tensor x = empty({65536}, half);
    for (std::size_t i = 0; i < 65536; ++i) reinterpret_cast<std::uint16_t*>(x.raw_data())[i] = std::uint16_t(i);
    const Tensor wide = converted(x, DType::f32), back = converted(wide, half),
                 back_from_double = converted(converted(x, DType::f64), half);
    const auto* before = reinterpret_cast<const std::uint16_t*>(x.raw_data());
    const auto* after = reinterpret_cast<const std::uint16_t*>(back.raw_data());
    const auto* after_double = reinterpret_cast<const std::uint16_t*>(back_from_double.raw_data());
    int num_wrong = 0;
    for (std::size_t i = 0; i < 65536; ++i) {
      if (std::isnan(wide.data<float>()[i])) {
        num_wrong += !std::isnan(converted(view::slice(back, 0, std::int64_t(i), std::int64_t(i) + 1), DType::f32).data<float>()[0]);
      } else {
        // Kernels read subnormal floats as 0 where they compute with them.
        const bool is_subnormal = half == DType::bf16 && (i & 0x7fff) < 0x80;
        num_wrong += before[i] != after[i] || (before[i] != after_double[i] && !is_subnormal);
      }
    }
    CHECK(num_wrong == 0);
  }
}

TEST_CASE("convert: halves round to nearest, ties to even, once") {
  const auto f16_bits = [](double v) { return bits_of<f16>(converted(from_values(std::vector<double>{v}, {1}), DType::f16)); };
  const auto bf16_bits = [](double v) { return bits_of<bf16>(converted(from_values(std::vector<double>{v}, {1}), DType::bf16)); };
  CHECK(f16_bits(1 + 0x1p-11) == 0x3c00);            // tie, to even
  CHECK(f16_bits(1 + 3 * 0x1p-11) == 0x3c02);        // tie, to even
  CHECK(f16_bits(1 + 0x1p-11 + 0x1p-40) == 0x3c01);  // above the tie by less than a float can hold
  CHECK(f16_bits(1 + 3 * 0x1p-11 - 0x1p-40) == 0x3c01);
  CHECK(f16_bits(65519.999) == 0x7bff);
  CHECK(f16_bits(65520) == 0x7c00);
  CHECK(f16_bits(0x1p-25) == 0);
  CHECK(f16_bits(0x1.0000001p-25) == 1);
  CHECK(bf16_bits(1 + 0x1p-8) == 0x3f80);
  CHECK(bf16_bits(1 + 0x1p-8 + 0x1p-40) == 0x3f81);
  CHECK(bf16_bits(-1 - 3 * 0x1p-8 + 0x1p-40) == 0xbf81);
  CHECK(bf16_bits(1e300) == 0x7f80);
}

TEST_CASE("convert: vectors of floats become the same halves as single ones") {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 100003; ++i) values.push_back(std::bit_cast<float>(i * 42949u));  // every exponent and sign
  for (std::uint32_t i = 0; i < 3000; ++i) values.push_back(std::bit_cast<float>(0x38800000u + (i - 1500) * 0x1000u));  // ties
  const std::int64_t n = std::int64_t(values.size());
  const Tensor x = from_values(values, {n}), y = converted(x, DType::f16), z = converted(x, DType::bf16);
  int num_wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      num_wrong += !std::isnan(float(y.data<f16>()[i])) || !std::isnan(float(z.data<bf16>()[i]));
      continue;
    }
    num_wrong += y.data<f16>()[i].bits != f16(values[i]).bits || z.data<bf16>()[i].bits != bf16(values[i]).bits;
  }
  CHECK(num_wrong == 0);
}

TEST_CASE("convert: floats out of an integer's range go to its nearest end, NaN to 0") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = from_values(std::vector<double>{-inf, -1e30, -1.9, nan, 1.9, 300, 1e30, inf}, {8});
  CHECK(converted(x, DType::u8).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 0, 0, 1, 255, 255, 255});
  const std::int64_t low = std::numeric_limits<std::int64_t>::min(), high = std::numeric_limits<std::int64_t>::max();
  CHECK(converted(x, DType::i64).to_vector<std::int64_t>() == std::vector<std::int64_t>{low, low, -1, 0, 1, 300, high, high});
  const std::int64_t low32 = std::numeric_limits<std::int32_t>::min(), high32 = std::numeric_limits<std::int32_t>::max();
  CHECK(converted(converted(x, DType::f32), DType::i32).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{low32, low32, -1, 0, 1, 300, high32, high32});
  CHECK(converted(x, DType::boolean).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("convert: layouts of every element size are copied, transposed ones too") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{0, 3}, Shape{33, 65}, Shape{3, 40, 70}, Shape{2, 31, 3, 33}}) {
      const Tensor x = converted(random_tensor(shape, DType::f32, 6, 0, 200), dtype);
      for (const auto& [name, in] : layouts_of(x)) {
        for (const auto& [out_name, out] : layouts_of(x)) {
          fill_values(out, 3);
          launch(Convert{.x = in, .out = out});
          INFO(dtype << " " << shape << " " << name << " to " << out_name);
          CHECK(same_bits(out, x));
          const Tensor wide = empty(shape, DType::f64);
          launch(Convert{.x = in, .out = wide});
          CHECK(wide.to_vector<double>() == x.to_vector<double>());
        }
      }
    }
  }
  const Tensor matrix = random_tensor({300, 500}, DType::f32, 1), transposed = view::transpose(matrix, 0, 1);
  CHECK(same_on_all_threads([&] { return std::vector<Tensor>{converted(transposed, DType::f32)}; }));
  const Tensor expanded = view::expand(random_tensor({1, 70}, DType::f32, 2), {50, 70});
  CHECK(converted(expanded, DType::f32).to_vector<double>() == expanded.to_vector<double>());
}
