// The vector conversions of f16 and bf16 against core/half.h, bit by bit: every value there is, ties, borders, every lane.
#include <refrain/core/view.h>
#include <refrain/tests/kernels/elementwise/layouts.h>
#include <refrain/tests/support/half.h>

#include <bit>

using namespace refrain;

namespace {

// Each of `values` in every lane of a vector, then tails of every length.
template <class Check>
void for_lanes_and_tails(const Tensor& values, Check&& check) {
  const std::int64_t n = values.numel();
  for (std::int64_t first = 0; first < 17 && first < n; ++first) check(view::slice(values, 0, first, n));
  for (std::int64_t count = 0; count <= 65 && count < n; ++count) check(view::slice(values, 0, n - count, n));
}

template <class H>
std::int64_t num_wrongly_widened(const Tensor& x) {
  const Guarded out(x.shape(), DType::f32);
  launch(Convert{.x = x, .out = out.tensor});
  std::int64_t count = out.is_intact() ? 0 : 1;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    count += std::bit_cast<std::uint32_t>(out.tensor.data<float>()[i]) != std::bit_cast<std::uint32_t>(float(x.data<H>()[i]));
  }
  return count;
}

template <class H>
std::int64_t num_wrongly_rounded(const Tensor& x) {
  const Guarded out(x.shape(), dtype_of<H>);
  launch(Convert{.x = x, .out = out.tensor});
  std::int64_t count = out.is_intact() ? 0 : 1;
  for (std::int64_t i = 0; i < x.numel(); ++i) count += out.tensor.data<H>()[i].bits != H(x.data<float>()[i]).bits;
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE("convert: all 65,536 values widen in vectors to the bits of core/half.h, and come back", "", f16, bf16) {
  using H = TestType;
  const Tensor x = all_values(dtype_of<H>);
  CHECK(num_wrongly_widened<H>(x) == 0);
  for_lanes_and_tails(x, [](const Tensor& part) { CHECK(num_wrongly_widened<H>(part) == 0); });
  const Tensor wide = as(x, DType::f32), back = as(wide, dtype_of<H>);
  for_lanes_and_tails(wide, [](const Tensor& part) { CHECK(num_wrongly_rounded<H>(part) == 0); });
  std::int64_t num_wrong = 0;
  for (std::int64_t i = 0; i < 65536; ++i) {
    // Subnormals and infinities come back as they were; a NaN stays a NaN of its sign, made quiet.
    const std::uint16_t before = std::uint16_t(i), after = back.data<H>()[i].bits;
    const bool is_nan = std::isnan(wide.data<float>()[i]);
    const std::uint16_t quiet = dtype_of<H> == DType::f16 ? 0x200 : 0x40;
    num_wrong += after != (is_nan ? before | quiet : before);
  }
  CHECK(num_wrong == 0);
}

TEMPLATE_TEST_CASE("convert: f32 at, just above and just below every tie rounds in vectors as core/half.h does", "", f16, bf16) {
  using H = TestType;
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    H low, high;
    low.bits = std::uint16_t(bits);
    high.bits = std::uint16_t(bits + 1);
    if (std::isnan(float(low)) || std::isinf(float(low))) continue;
    // Behind the largest value comes where the next would be: 65,520 is the tie between 65,504 and 65,536.
    const double next = std::isfinite(float(high))
                            ? double(float(high))
                            : std::copysign(largest_of(dtype_of<H>) * (1 + roundoff_of(dtype_of<H>)), double(float(low)));
    const float middle = float((double(float(low)) + next) / 2);
    for (float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, std::copysign(HUGE_VALF, middle)), float(low)})
      values.push_back(v);
  }
  const Tensor x = from_values(values, {std::int64_t(values.size())});
  for_lanes_and_tails(x, [](const Tensor& part) { CHECK(num_wrongly_rounded<H>(part) == 0); });
  // And against the definition of rounding.
  const std::vector<double> got = as(x, dtype_of<H>).template to_vector<double>();
  std::int64_t num_wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) num_wrong += got[i] != rounded_to(double(values[i]), dtype_of<H>);
  CHECK(num_wrong == 0);
}

TEMPLATE_TEST_CASE("convert: f32 of every exponent, sign and last bits rounds in vectors as core/half.h does", "", f16, bf16) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < (1u << 20); ++i) values.push_back(std::bit_cast<float>(i * 4099u));
  for (std::uint32_t bits :
       {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffbfffffu, 0x7fc00000u, 0xffffffffu, 0x7f801000u, 0x00000001u, 0x807fffffu, 0x7f7fffffu}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  const Tensor x = from_values(values, {std::int64_t(values.size())});
  CHECK(num_wrongly_rounded<TestType>(x) == 0);
  for (std::int64_t first = 1; first < 17; first += 5) CHECK(num_wrongly_rounded<TestType>(view::slice(x, 0, first, x.numel())) == 0);
}

TEST_CASE("convert: scattered elements are rounded and widened as neighbours are, in every layout") {
  for (DType half : kHalves) {
    std::vector<float> values;
    for (std::uint32_t i = 0; i < 3 * 37 * 700; ++i) values.push_back(std::bit_cast<float>(i * 55313u));
    const Tensor x = from_values(values, {3, 37, 700}), narrow = as(x, half), wide = as(narrow, DType::f32);
    for (const auto& [name, in] : layouts_of(x)) {
      for (const auto& [out_name, out] : layouts_of(narrow)) {
        INFO(half << " " << name << " to " << out_name);
        launch(Convert{.x = in, .out = out});
        CHECK(num_different(out, narrow) == 0);
        launch(Convert{.x = out, .out = in});
        CHECK(num_different(in, wide) == 0);
        copy_values(in, x);
      }
    }
    const Tensor transposed = view::transpose(x, 0, 2);
    CHECK(same_on_all_threads([&] { return std::vector<Tensor>{as(transposed, half)}; }));
  }
}

TEST_CASE("convert: f16's and bf16's borders") {
  const auto f16_of = [](std::vector<float> v) { return as(from_values(v, {std::int64_t(v.size())}), DType::f16).to_vector<double>(); };
  CHECK(f16_of({65519.996f, 65520, -65519.996f, -65520, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, -0x1p-26f, 0x1.ff8p-15f, 0x1.ffcp-15f}) ==
        std::vector<double>{65504, HUGE_VAL, -65504, -HUGE_VAL, 0x1p-24, 0, 0x1p-24, 0, 0x1.ff8p-15, 0x1p-14});
  const Tensor bf = as(from_values(std::vector<float>{0x1.fefffep127f, 0x1.ffp127f, 0x1p-133f, 0x1p-134f, 0x1.8p-133f}, {5}), DType::bf16);
  CHECK(bf.to_vector<double>() == std::vector<double>{0x1.fep127, HUGE_VAL, 0x1p-133, 0, 0x1p-132});
}

TEST_CASE("convert: between f16 and bf16 a value is rounded once, and strided views give the same bits") {
  for (const auto& [from, to] : {std::pair{DType::f16, DType::bf16}, {DType::bf16, DType::f16}}) {
    const Tensor x = all_values(from), y = as(x, to);
    const std::vector<double> values = x.to_vector<double>(), got = y.to_vector<double>();
    std::int64_t num_wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      num_wrong += !std::isnan(values[i]) ? got[i] != rounded_to(values[i], to) : !std::isnan(got[i]);
    CHECK(num_wrong == 0);
    const Tensor every_third = view::slice(x, 0, 1, 65536, 3);
    CHECK(same_bits(as(every_third, to), contiguous_values(view::slice(y, 0, 1, 65536, 3))));
    CHECK(same_bits(as(every_third, DType::f32), contiguous_values(view::slice(as(x, DType::f32), 0, 1, 65536, 3))));
    CHECK(same_on_all_threads([&, to = to] { return std::vector<Tensor>{as(x, to), as(as(x, DType::f32), to)}; }));
  }
}
