// Tensor-core instructions against plain loops, with the fragment layouts as the PTX ISA states them (element by element, not
// as the interpreter computes them).
#include <refrain/core/half.h>
#include <refrain/tests/cuda/ptx/program.h>

using namespace refrain::testing;

namespace {

// PTX ISA, m16n8k16 with 16-bit types, groupID = lane / 4, threadID = lane % 4:
//   a_i: row = groupID for i in {0, 1, 4, 5}, else groupID + 8; column = threadID * 2 + (i & 1), + 8 for i >= 4
//   b_i: row = threadID * 2 + (i & 1), + 8 for i >= 2; column = groupID
//   c_i: row = groupID for i < 2, else groupID + 8; column = threadID * 2 + (i & 1)
struct Place {
  int row, column;
};
Place place_a(int lane, int i) {
  return {lane / 4 + (i == 2 || i == 3 || i == 6 || i == 7 ? 8 : 0), lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Place place_b(int lane, int i) { return {lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane / 4}; }
Place place_c(int lane, int i) { return {lane / 4 + (i >= 2 ? 8 : 0), lane % 4 * 2 + (i & 1)}; }

std::uint32_t number(int k) { return std::uint32_t(k) * 2654435761u >> 7; }
float small_value(int k) { return float(int(number(k) % 17) - 8); }  // small integers: sums are exact

std::uint16_t bits(bool is_bf16, float x) {
  return is_bf16 ? refrain::half_bits::float_to_bf16(x) : refrain::half_bits::float_to_f16(x);
}

}  // namespace

TEST_CASE("ptx mma: m16n8k16 of f16 and bf16 equals the plain product") {
  for (const bool is_bf16 : {false, true}) {
    float a[16][16], b[16][8], c[16][8];
    for (int r = 0; r < 16; ++r)
      for (int k = 0; k < 16; ++k) a[r][k] = small_value(r * 16 + k);
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) b[k][n] = small_value(1000 + k * 8 + n);
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < 8; ++n) c[r][n] = small_value(2000 + r * 8 + n);
    Words in(32 * 10);
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 8; ++i)
        in[std::size_t(l * 10 + i / 2)] |= std::uint64_t(bits(is_bf16, a[place_a(l, i).row][place_a(l, i).column]))
                                           << (16 * (i % 2));
      for (int i = 0; i < 4; ++i)
        in[std::size_t(l * 10 + 4 + i / 2)] |= std::uint64_t(bits(is_bf16, b[place_b(l, i).row][place_b(l, i).column]))
                                               << (16 * (i % 2));
      for (int i = 0; i < 4; ++i) in[std::size_t(l * 10 + 6 + i)] = word(c[place_c(l, i).row][place_c(l, i).column]);
    }
    std::string body;
    for (int k = 0; k < 6; ++k) body += "ld.global.u32 %r" + std::to_string(k) + ", [%in+" + std::to_string(8 * k) + "];";
    for (int k = 0; k < 4; ++k) body += "ld.global.f32 %f" + std::to_string(k) + ", [%in+" + std::to_string(48 + 8 * k) + "];";
    const std::string type = is_bf16 ? "bf16" : "f16";
    body += "mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type +
            ".f32 {%f4, %f5, %f6, %f7}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};";
    for (int k = 0; k < 4; ++k) body += "st.global.f32 [%out+" + std::to_string(8 * k) + "], %f" + std::to_string(4 + k) + ";";
    const Words out = run(body, in, 10, 4, {.threads = 32});
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        const Place at = place_c(l, i);
        float sum = c[at.row][at.column];
        for (int k = 0; k < 16; ++k) sum += a[at.row][k] * b[k][at.column];
        CHECK(to_float(out[std::size_t(l * 4 + i)]) == sum);
      }
  }
}

TEST_CASE("ptx ldmatrix: lane l gets elements 2 (l % 4) and the next of row l / 4, or of column l / 4 when transposed") {
  // Shared memory holds element (m, r, c) = 100 m + 10 r + c; lane 8 m + r names row r of matrix m.
  const std::string fill =
      ".shared .align 16 .b8 tile[512]; mov.u32 %r1, tile; shl.b32 %r2, %tid, 4; add.u32 %r1, %r1, %r2;"
      "shr.u32 %r3, %tid, 3; mul.lo.u32 %r3, %r3, 100; and.b32 %r4, %tid, 7; mul.lo.u32 %r4, %r4, 10; add.u32 %r3, %r3, %r4;"
      "mov.u32 %r5, 0; mov.u32 %r6, %r1; $F: cvt.u16.u32 %h0, %r3; st.shared.u16 [%r6], %h0; add.u32 %r3, %r3, 1; add.u32 %r6, "
      "%r6, 2;"
      "add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 8; @%p0 bra $F; bar.sync 0;";
  const std::string store =
      "st.global.u32 [%out], %r10; st.global.u32 [%out+8], %r11; st.global.u32 [%out+16], %r12; st.global.u32 [%out+24], %r13;";
  for (const bool is_transposed : {false, true}) {
    const Words out = run(fill + "ldmatrix.sync.aligned.m8n8.x4" + (is_transposed ? ".trans" : "") +
                              ".shared.b16 {%r10, %r11, %r12, %r13}, [%r1];" + store,
                          {}, 0, 4, {.threads = 32});
    for (unsigned l = 0; l < 32; ++l)
      for (unsigned m = 0; m < 4; ++m) {
        const unsigned i = l / 4, j = l % 4 * 2;
        const unsigned low = is_transposed ? 100 * m + 10 * j + i : 100 * m + 10 * i + j,
                       high = is_transposed ? low + 10 : low + 1;
        CHECK(std::uint32_t(out[l * 4 + m]) == (low | high << 16));
      }
  }
}
