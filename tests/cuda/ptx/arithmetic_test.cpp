// The interpreter's arithmetic against known results: wrapping, carries, rounding modes, saturation, fields of bits.
#include <refrain/tests/cuda/ptx/program.h>

using namespace refrain::testing;

TEST_CASE("ptx: integer sums wrap and products give low, high and wide halves") {
  CHECK(one("add.u32 %d, %a, %b", "u32", {0xffffffff, 2}) == 1);
  CHECK(one("sub.s32 %d, %a, %b", "s32", {0x80000000, 1}) == 0x7fffffff);
  CHECK(one("add.sat.s32 %d, %a, %b", "s32", {0x7fffffff, 1}) == 0x7fffffff);
  CHECK(one("mul.lo.s32 %d, %a, %b", "s32", {0x10001, 0x10001}) == 0x20001);
  CHECK(one("mul.hi.u32 %d, %a, %b", "u32", {0xffffffff, 0xffffffff}) == 0xfffffffe);
  CHECK(one("mul.hi.s32 %d, %a, %b", "s32", {0xffffffff, 2}) == 0xffffffff);
  CHECK(one("mul.hi.u64 %d, %a, %b", "u64", {~0ull, ~0ull}) == ~0ull - 1);
  CHECK(one("mul.hi.s64 %d, %a, %b", "s64", {~0ull, 1}) == ~0ull);
  CHECK(one("mad.lo.u32 %d, %a, %b, %c", "u32", {3, 5, 7}) == 22);
  const Words wide =
      run("ld.global.u32 %r0, [%in]; ld.global.u32 %r1, [%in+8]; mul.wide.s32 %rd0, %r0, %r1; st.global.u64 [%out], %rd0;"
          "mul.wide.u32 %rd1, %r0, %r1; st.global.u64 [%out+8], %rd1; mov.u64 %rd3, 5; mad.wide.s32 %rd2, %r0, %r1, %rd3;"
          "st.global.u64 [%out+16], %rd2;",
          {0xffffffff, 3}, 2, 3);
  CHECK(wide == Words{std::uint64_t(-3), 0x2fffffffd, 2});
}

TEST_CASE("ptx: division truncates to zero, and by zero gives ones") {
  CHECK(one("div.s32 %d, %a, %b", "s32", {std::uint32_t(-7), 2}) == std::uint32_t(-3));
  CHECK(one("rem.s32 %d, %a, %b", "s32", {std::uint32_t(-7), 2}) == std::uint32_t(-1));
  CHECK(one("div.s32 %d, %a, %b", "s32", {0x80000000, 0xffffffff}) == 0x80000000);
  CHECK(one("div.u32 %d, %a, %b", "u32", {7, 0}) == 0xffffffff);
  CHECK(one("rem.u64 %d, %a, %b", "u64", {1ull << 40, 1000}) == (1ull << 40) % 1000);
}

TEST_CASE("ptx: a carry goes from one sum into the next") {
  const Words sum =
      run("ld.global.u64 %rd0, [%in]; ld.global.u64 %rd1, [%in+8]; ld.global.u64 %rd2, [%in+16]; ld.global.u64 %rd3, [%in+24];"
          "add.cc.u64 %rd4, %rd0, %rd2; addc.u64 %rd5, %rd1, %rd3; st.global.u64 [%out], %rd4; st.global.u64 [%out+8], %rd5;"
          "sub.cc.u64 %rd6, %rd0, %rd2; subc.u64 %rd7, %rd1, %rd3; st.global.u64 [%out+16], %rd6; st.global.u64 [%out+24], %rd7;",
          {~0ull, 1, 1, 2}, 4, 4);
  CHECK(sum == Words{0, 4, ~0ull - 1, ~0ull});
  const Words product = run("ld.global.u32 %r0, [%in]; ld.global.u32 %r1, [%in+8]; mov.u32 %r2, 0xffffffff; mov.u32 %r9, 0;"
                            "mad.lo.cc.u32 %r3, %r0, %r1, %r2; madc.hi.u32 %r4, %r0, %r1, %r9; mov.b64 %rd0, {%r3, %r4};"
                            "st.global.u64 [%out], %rd0;", {0xffffffff, 0xffffffff}, 2, 1);
  CHECK(product[0] == 0xffffffffull * 0xffffffffull + 0xffffffffull);
}

TEST_CASE("ptx: fields, shifts, counts and permutations of bits") {
  CHECK(one("shl.b32 %d, %a, %b", "u32", {1, 32}) == 0);
  CHECK(one("shr.s32 %d, %a, %b", "s32", {0x80000000, 99}) == 0xffffffff);
  CHECK(one("shr.u32 %d, %a, %b", "u32", {0x80000000, 31}) == 1);
  CHECK(one("shf.l.wrap.b32 %d, %a, %b, %c", "u32", {0x80000000, 1, 33}) == 3);
  CHECK(one("shf.r.clamp.b32 %d, %a, %b, %c", "u32", {1, 0xabc, 32}) == 0xabc);
  CHECK(one("bfe.u32 %d, %a, %b, %c", "u32", {0x12345678, 8, 8}) == 0x56);
  CHECK(one("bfe.s32 %d, %a, %b, %c", "s32", {0x0000f000, 12, 4}) == 0xffffffff);
  CHECK(one("bfe.s32 %d, %a, %b, %c", "s32", {0x80000000, 28, 32}) == 0xfffffff8);
  CHECK(one("bfi.b32 %d, %a, %b, 8, 4", "u32", {0xff, 0}) == 0xf00);
  CHECK(one("popc.b32 %d, %a", "u32", {0xf0f0}) == 8);
  CHECK(one("clz.b32 %d, %a", "u32", {0}) == 32);
  CHECK(one("bfind.u32 %d, %a", "u32", {0x10}) == 4);
  CHECK(one("brev.b32 %d, %a", "u32", {1}) == 0x80000000);
  CHECK(one("prmt.b32 %d, %a, %b, 0x7410", "u32", {0x33221100, 0x77665544}) == 0x77441100);
  CHECK(one("prmt.b32 %d, %a, %b, 0x0008", "u32", {0x00000080, 0}) == 0x808080ff);
  CHECK(one("lop3.b32 %d, %a, %b, %c, 0x96", "u32", {0xf0, 0xcc, 0xaa}) == (0xf0 ^ 0xcc ^ 0xaa));
  CHECK(one("lop3.b32 %d, %a, %b, %c, 0xe8", "u32", {0xf0, 0xcc, 0xaa}) == 0xe8);
}

TEST_CASE("ptx: f32 is rounded exactly in every mode") {
  const float third = 1.0f / 3.0f;
  CHECK(one("div.rn.f32 %d, %a, %b", "f32", {word(1.f), word(3.f)}) == word(third));
  CHECK(one("div.rz.f32 %d, %a, %b", "f32", {word(1.f), word(3.f)}) == word(std::nextafterf(third, 0)));
  const float tiny = 0x1p-40f;
  CHECK(one("add.rn.f32 %d, %a, %b", "f32", {word(1.f), word(tiny)}) == word(1.f));
  CHECK(one("add.rp.f32 %d, %a, %b", "f32", {word(1.f), word(tiny)}) == word(std::nextafterf(1, 2)));
  CHECK(one("add.rm.f32 %d, %a, %b", "f32", {word(-1.f), word(-tiny)}) == word(std::nextafterf(-1, -2)));
  CHECK(one("sub.rz.f32 %d, %a, %b", "f32", {word(1.f), word(tiny)}) == word(std::nextafterf(1, 0)));
  // A sum that no double holds: 1 + 2^-24 is a tie, and 2^-90 beyond it decides.
  CHECK(one("fma.rn.f32 %d, %a, %b, %c", "f32", {word(0x1p-45f), word(0x1p-45f), word(1.f)}) == word(1.f));
  CHECK(one("fma.rp.f32 %d, %a, %b, %c", "f32", {word(0x1p-45f), word(0x1p-45f), word(1.f)}) == word(std::nextafterf(1, 2)));
  CHECK(one("fma.rn.f32 %d, %a, %b, %c", "f32", {word(1.1f), word(1.1f), word(-1.21f)}) == word(std::fma(1.1f, 1.1f, -1.21f)));
  CHECK(one("mul.ftz.f32 %d, %a, %b", "f32", {word(1e-30f), word(1e-10f)}) == 0);
  CHECK(one("add.sat.f32 %d, %a, %b", "f32", {word(1.f), word(1.f)}) == word(1.f));
  CHECK(one("sqrt.rn.f32 %d, %a", "f32", {word(2.f)}) == word(std::sqrt(2.f)));
  CHECK(one("fma.rn.f64 %d, %a, %b, %c", "f64", {word(1.1), word(1.1), word(-1.21)}) == word(std::fma(1.1, 1.1, -1.21)));
}

TEST_CASE("ptx: minimum and maximum prefer numbers, and +0 is above -0") {
  const std::uint64_t nan = word(std::nanf(""));
  CHECK(one("min.f32 %d, %a, %b", "f32", {nan, word(2.f)}) == word(2.f));
  CHECK(std::isnan(to_float(one("max.NaN.f32 %d, %a, %b", "f32", {nan, word(2.f)}))));
  CHECK(one("min.f32 %d, %a, %b", "f32", {word(0.f), word(-0.f)}) == word(-0.f));
  CHECK(one("max.f32 %d, %a, %b", "f32", {word(-0.f), word(0.f)}) == word(0.f));
}

TEST_CASE("ptx: 16-bit arithmetic is rounded once") {
  CHECK(one("add.f16 %d, %a, %b", "b16", {0x3c00, 0x1000}) == 0x3c00);               // 1 + 2^-11 is a tie
  CHECK(one("fma.rn.f16 %d, %a, %b, %c", "b16", {0x3c01, 0x3c01, 0xbc00}) == 0x1800);  // (1 + e)^2 - 1 = 2 e + e^2: a tie
  CHECK(one("fma.rn.f16 %d, %a, %b, %c", "b16", {0x3c03, 0x3c03, 0xbc00}) == 0x1e02);  // 6 e + 9 e^2
  CHECK(one("mul.f16x2 %d, %a, %b", "b32", {0x40003c00, 0x42004000}) == 0x46004000);  // 2 * 3, 1 * 2
  CHECK(one("fma.rn.bf16x2 %d, %a, %b, %c", "b32", {0x3f803f80, 0x40004040, 0x3f803f80}) == 0x40404080);
  CHECK(one("neg.bf16x2 %d, %a", "b32", {0x3f80bf80}) == 0xbf803f80);
  CHECK(one("max.f16x2 %d, %a, %b", "b32", {0x7e003c00, 0x40004000}) == 0x40004000);
}

TEST_CASE("ptx: what is unknown is an error with the instruction's text") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(one("frobnicate.u32 %d, %a", "u32", {1}), Contains("unknown instruction: frobnicate.u32 %d, %a"));
  CHECK_THROWS_WITH(one("add.weird.u32 %d, %a, %a", "u32", {1}), Contains("unknown qualifier .weird"));
  CHECK_THROWS_WITH(one("add.u32 %d, %nobody, %a", "u32", {1}), Contains("unknown operand %nobody"));
  CHECK_THROWS_WITH(one("ld.global.u32 %d, [%in+2]", "u32", {1}), Contains("misaligned address"));
}
