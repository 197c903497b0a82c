// The interpreter's cvt against known results: rounding modes, saturation, extension.
#include <refrain/core/half.h>
#include <refrain/tests/cuda/ptx/program.h>

using namespace refrain::testing;

namespace {

std::uint64_t from_f32(const std::string& instruction, float x) {
  return one(
      "."
      "reg .b32 %x; mov.b32 %x, %a; " +
          instruction,
      "u32", {word(x)});
}

}  // namespace

TEST_CASE("ptx cvt: floats to integers round as asked and saturate") {
  CHECK(from_f32("cvt.rni.s32.f32 %d, %x", 2.5f) == 2);
  CHECK(from_f32("cvt.rzi.s32.f32 %d, %x", -2.7f) == std::uint32_t(-2));
  CHECK(from_f32("cvt.rmi.s32.f32 %d, %x", -2.1f) == std::uint32_t(-3));
  CHECK(from_f32("cvt.rpi.s32.f32 %d, %x", 2.1f) == 3);
  CHECK(from_f32("cvt.rzi.s32.f32 %d, %x", 1e20f) == 0x7fffffff);
  CHECK(from_f32("cvt.rzi.s32.f32 %d, %x", -1e20f) == 0x80000000);
  CHECK(from_f32("cvt.rzi.u32.f32 %d, %x", -5.f) == 0);
  CHECK(from_f32("cvt.rzi.u32.f32 %d, %x", std::nanf("")) == 0);
  CHECK(from_f32("cvt.rzi.u8.f32 %d, %x", 300.f) == 255);
  CHECK(from_f32("cvt.rzi.s8.f32 %d, %x", -300.f) == std::uint32_t(-128));
  CHECK(one("cvt.rzi.s64.f64 %d, %a", "f64", {word(-9.9e18)}) == 1ull << 63);
  CHECK(one("cvt.rzi.u64.f64 %d, %a", "f64", {word(1.8e19)}) == 18000000000000000000ull);
}

TEST_CASE("ptx cvt: integers to floats round once, in every mode") {
  const auto to_f32 = [](const std::string& rounding, std::uint64_t x) {
    return run("ld.global.u64 %rd0, [%in]; cvt." + rounding +
                   ".f32.u64 %f0, %rd0; mov.b32 %r0, %f0; cvt.u64.u32 %rd1, %r0; st.global.u64 [%out], %rd1;",
               {x}, 1, 1)[0];
  };
  const std::uint64_t x = (1ull << 40) + (1ull << 16) + 1;  // just above a tie of f32
  CHECK(to_f32("rn", x) == word(float((1ull << 40) + (1ull << 17))));
  CHECK(to_f32("rz", x) == word(float(1ull << 40)));
  CHECK(to_f32("rp", (1ull << 40) + 1) == word(float((1ull << 40) + (1ull << 17))));
  CHECK(to_f32("rn", ~0ull) == word(0x1p64f));
  // 2049 and a tie in f16; 65520 is its first overflow.
  CHECK(one("cvt.rn.f16.u32 %h0, %a; cvt.u32.u16 %d, %h0", "u32", {2049}) == 0x6800);
  CHECK(one("cvt.rn.f16.u32 %h0, %a; cvt.u32.u16 %d, %h0", "u32", {65520}) == 0x7c00);
  CHECK(one("cvt.rn.f64.s32 %fd0, %a; cvt.rzi.s32.f64 %d, %fd0", "s32", {std::uint32_t(-77)}) == std::uint32_t(-77));
}

TEST_CASE("ptx cvt: f32 to 16 bits agrees with the engine's conversions, and rounds towards zero when asked") {
  for (int k = 0; k < 4000; ++k) {
    const float x = std::bit_cast<float>(std::uint32_t(k) * 1073807u + 12345u);
    if (std::isnan(x)) continue;
    CHECK(from_f32("cvt.rn.f16.f32 %h0, %x; cvt.u32.u16 %d, %h0", x) == refrain::half_bits::float_to_f16(x));
    CHECK(from_f32("cvt.rn.bf16.f32 %h0, %x; cvt.u32.u16 %d, %h0", x) == refrain::half_bits::float_to_bf16(x));
  }
  CHECK(from_f32("cvt.rz.bf16.f32 %h0, %x; cvt.u32.u16 %d, %h0", 1.999f) == 0x3fff);
  CHECK(from_f32("cvt.rz.f16.f32 %h0, %x; cvt.u32.u16 %d, %h0", 1e9f) == 0x7bff);
  CHECK(from_f32("cvt.rn.bf16x2.f32 %d, %x, 0f40000000", 1.f) == 0x3f804000);
  CHECK(from_f32("cvt.rn.f16x2.f32 %d, %x, 0f40000000", 1.f) == 0x3c004000);
  CHECK(from_f32("cvt.rna.tf32.f32 %d, %x", 1.f + 0x1p-11f) == word(1.f + 0x1p-10f));
}

TEST_CASE("ptx cvt: integers are cut, extended and saturated") {
  CHECK(one("cvt.s32.s8 %d, %a", "s32", {0x1234ff80}) == 0xffffff80);
  CHECK(one("cvt.u32.u8 %d, %a", "u32", {0x1234ff80}) == 0x80);
  CHECK(one("cvt.sat.u8.s32 %d, %a", "s32", {std::uint32_t(-4)}) == 0);
  CHECK(one("cvt.sat.s8.s32 %d, %a", "s32", {1000}) == 127);
  CHECK(one("cvt.s64.s32 %rd0, %a; cvt.u32.u64 %d, %rd0", "s32", {0x80000001}) == 0x80000001);
}

TEST_CASE("ptx setp: unordered comparisons hold for NaN, ordered ones do not") {
  const auto holds = [](const std::string& comparison, float a, float b) {
    return one("setp." + comparison + ".f32 %p0, %a, %b; selp.u32 %d, 1, 0, %p0", "f32", {word(a), word(b)}) == 1;
  };
  const float nan = std::nanf("");
  CHECK_FALSE(holds("eq", nan, nan));
  CHECK_FALSE(holds("ne", nan, 1));
  CHECK(holds("neu", nan, 1));
  CHECK(holds("ltu", nan, 1));
  CHECK(holds("nan", nan, 1));
  CHECK(holds("ge", 2, 2));
  CHECK(one("setp.lt.s32 %p1, %a, %b; setp.lo.and.u32 %p0|%p2, %a, %b, %p1; selp.u32 %d, 1, 0, %p0", "s32", {0xffffffff, 1}) ==
        0);
  CHECK(one("setp.lt.s32 %p0, %a, %b; selp.u32 %d, 1, 0, %p0", "s32", {0xffffffff, 1}) == 1);
}
