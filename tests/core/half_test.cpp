// Conversions of the 16-bit types, over every value there is.
#include <refrain/core/half.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <limits>

using namespace refrain;

namespace {

double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const double mantissa = bits & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("f16: all 65,536 values widen exactly and come back") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    f16 h;
    h.bits = std::uint16_t(bits);
    const float wide = float(h);
    const bool is_special = ((bits >> 10) & 0x1f) == 0x1f;
    if (is_special && (bits & 0x3ff)) {
      const f16 back(wide);
      wrong += !(std::isnan(wide) && (back.bits & 0x7c00) == 0x7c00 && (back.bits & 0x3ff) != 0 && (back.bits & 0x8000) == (bits & 0x8000));
    } else if (is_special) {
      wrong += !(std::isinf(wide) && std::signbit(wide) == bool(bits & 0x8000) && f16(wide).bits == bits);
    } else {
      wrong += !(double(wide) == f16_value(std::uint16_t(bits)) && f16(wide).bits == bits);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("f16: between neighbours the nearest is taken, the even one at the middle") {
  int wrong = 0;
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = f16_value(bits), high = f16_value(std::uint16_t(bits + 1));
    const float middle = float((low + high) / 2);  // exact: one more bit
    wrong += f16(middle).bits != (bits % 2 == 0 ? bits : bits + 1);
    wrong += f16(std::nextafter(middle, 0.0f)).bits != bits;
    wrong += f16(std::nextafter(middle, 1e9f)).bits != bits + 1;
  }
  CHECK(wrong == 0);
  CHECK(f16(65519.996f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(-1e30f).bits == 0xfc00);
  CHECK(f16(std::ldexp(1.0f, -25)).bits == 0);  // half the least subnormal: ties to even
  CHECK(f16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits == 1);
  CHECK(f16(-0.0f).bits == 0x8000);
}

TEST_CASE("bf16: all 65,536 values come back, ties go to even, NaN stays NaN") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 b;
    b.bits = std::uint16_t(bits);
    const float wide = float(b);
    if (std::isnan(wide)) wrong += !std::isnan(float(bf16(wide)));
    else wrong += bf16(wide).bits != bits;
  }
  CHECK(wrong == 0);
  CHECK(float(bf16(257.0f)) == 256.0f);
  CHECK(float(bf16(259.0f)) == 260.0f);
  CHECK(float(bf16(70000.0f)) == 70144.0f);
  CHECK(std::isinf(float(bf16(std::numeric_limits<float>::max()))));
  CHECK(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));  // a payload that truncation would lose
}
