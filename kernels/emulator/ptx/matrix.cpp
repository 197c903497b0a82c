// Tensor cores: ldmatrix, stmatrix and mma.sync, with the fragment layouts of the PTX ISA. Products of 16-bit floats are exact in
// f32; sums are f32 over k in ascending order, which is one of the orders hardware may take.
#include <refrain/core/half.h>
#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/memory_access.h>

#include <array>

namespace refrain::emulator::ptx {

namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;

void need_all_lanes(const Warp& w, const Instruction& i) {
  if (w.active != kAllLanes) w.fail(i, std::countr_zero(w.active), "needs all 32 lanes");
}

std::vector<std::int32_t> columns_of(Decoder& d, std::size_t operand, std::size_t count, bool is_destination,
                                     Type type = Type::b32) {
  const auto elements = d.elements(operand);
  if (elements.size() != count) d.refuse("a fragment has another number of registers");
  std::vector<std::int32_t> columns;
  for (const auto each : elements) columns.push_back(is_destination ? d.destination(each, type) : d.source(each, type));
  return columns;
}

// ---- 8x8 matrices of 16 bits: lane 8 m + r has the address of row r of matrix m; lane l holds elements (l / 4, l % 4 * 2 + {0,
// 1})

void load_matrices(Warp& w, const Instruction& i) {
  need_all_lanes(w, i);
  const bool is_transposed = i.mode;
  for (int m = 0; m < i.count; ++m) {
    u16 rows[8][8];
    for (int r = 0; r < 8; ++r) std::memcpy(rows[r], host_address<Space::shared>(w, i, 8 * m + r, 16), 16);
    u32* d = w.column<u32>(w.list(i)[m]);
    for (int l = 0; l < 32; ++l) {
      const int r = l / 4, c = l % 4 * 2;
      d[l] = is_transposed ? rows[c][r] | u32(rows[c + 1][r]) << 16 : rows[r][c] | u32(rows[r][c + 1]) << 16;
    }
  }
}
void store_matrices(Warp& w, const Instruction& i) {
  need_all_lanes(w, i);
  const bool is_transposed = i.mode;
  for (int m = 0; m < i.count; ++m) {
    u16 rows[8][8];
    const u32* s = w.column<u32>(w.list(i)[m]);
    for (int l = 0; l < 32; ++l) {
      const int r = l / 4, c = l % 4 * 2;
      (is_transposed ? rows[c][r] : rows[r][c]) = u16(s[l]);
      (is_transposed ? rows[c + 1][r] : rows[r][c + 1]) = u16(s[l] >> 16);
    }
    for (int r = 0; r < 8; ++r) std::memcpy(host_address<Space::shared>(w, i, 8 * m + r, 16), rows[r], 16);
  }
}

template <bool kLoad>
void matrices(Decoder& d, Instruction& out) {
  if (!d.take("sync") || !d.take("aligned") || !d.take("m8n8")) d.refuse("only sync.aligned.m8n8");
  out.count = d.take("x4") ? 4 : d.take("x2") ? 2 : d.take("x1") ? 1 : 0;
  if (out.count == 0) d.refuse("x1, x2 or x4");
  out.mode = d.take("trans");
  if (take_space(d) != Space::shared) d.refuse("only shared memory");
  if (d.take_type() != Type::b16) d.refuse("only b16");
  d.address(kLoad ? 1 : 0, out);
  // With x4 a destination may be the source of addresses of later matrices only when it is read first: nvcc keeps them apart.
  out.list = d.list(columns_of(d, kLoad ? 0 : 1, out.count, kLoad));
  out.execute = kLoad ? &load_matrices : &store_matrices;
}

// ---- mma.sync: d[16, 8] = a[16, K] b[K, 8] + c[16, 8]

// What 16-bit inputs are widened by.
struct FromF16 { float operator()(u32 bits) const { return half_bits::f16_to_float(u16(bits)); } };
struct FromBF16 { float operator()(u32 bits) const { return half_bits::bf16_to_float(u16(bits)); } };

template <int kDepth>
struct Tiles {
  alignas(64) float a[16][kDepth];
  alignas(64) float b[kDepth][8];
  alignas(64) float sum[16][8];
};

// The list holds d, a, b, c. Lane l = 4 g + t: register k of a holds row g + 8 (k % 2), columns 2 t + 8 (k / 2) and the next;
// register k of b holds rows 2 t + 8 k and the next of column g.
template <int kDepth, class Widen>
void gather_inputs(const Warp& w, const std::int32_t* a, const std::int32_t* b, Tiles<kDepth>& tiles) {
  const Widen widen;
  for (int k = 0; k < kDepth / 4; ++k) {
    const u32* column = w.column<u32>(a[k]);
    for (int l = 0; l < 32; ++l) {
      float* at = &tiles.a[l / 4 + 8 * (k % 2)][l % 4 * 2 + 8 * (k / 2)];
      at[0] = widen(column[l]), at[1] = widen(column[l] >> 16);
    }
  }
  for (int k = 0; k < kDepth / 8; ++k) {
    const u32* column = w.column<u32>(b[k]);
    for (int l = 0; l < 32; ++l) {
      const int row = l % 4 * 2 + 8 * k;
      tiles.b[row][l / 4] = widen(column[l]), tiles.b[row + 1][l / 4] = widen(column[l] >> 16);
    }
  }
}
// A row at a time in registers: g++ 12 miscompiles the plain triple loop when it vectorises it for AVX-512 (found by test_ptx).
template <int kDepth>
void multiply(Tiles<kDepth>& tiles) {
  for (int r = 0; r < 16; ++r) {
    float row[8];
    std::memcpy(row, tiles.sum[r], sizeof row);
    for (int k = 0; k < kDepth; ++k)
      for (int c = 0; c < 8; ++c) row[c] += tiles.a[r][k] * tiles.b[k][c];
    std::memcpy(tiles.sum[r], row, sizeof row);
  }
}

template <int kDepth, class Widen>
void multiply_to_f32(Warp& w, const Instruction& i) {
  need_all_lanes(w, i);
  const std::int32_t *d = w.list(i), *a = d + 4, *b = a + kDepth / 4, *c = b + kDepth / 8;
  Tiles<kDepth> tiles;
  gather_inputs<kDepth, Widen>(w, a, b, tiles);
  for (int k = 0; k < 4; ++k)
    for (int l = 0; l < 32; ++l) tiles.sum[l / 4 + 8 * (k / 2)][l % 4 * 2 + k % 2] = w.column<float>(c[k])[l];
  multiply(tiles);
  for (int k = 0; k < 4; ++k)
    for (int l = 0; l < 32; ++l) w.column<float>(d[k])[l] = tiles.sum[l / 4 + 8 * (k / 2)][l % 4 * 2 + k % 2];
}
template <int kDepth>
void multiply_to_f16(Warp& w, const Instruction& i) {
  need_all_lanes(w, i);
  const std::int32_t *d = w.list(i), *a = d + 2, *b = a + kDepth / 4, *c = b + kDepth / 8;
  Tiles<kDepth> tiles;
  gather_inputs<kDepth, FromF16>(w, a, b, tiles);
  for (int k = 0; k < 2; ++k)
    for (int l = 0; l < 32; ++l) {
      float* at = &tiles.sum[l / 4 + 8 * k][l % 4 * 2];
      at[0] = half_bits::f16_to_float(u16(w.column<u32>(c[k])[l])),
      at[1] = half_bits::f16_to_float(u16(w.column<u32>(c[k])[l] >> 16));
    }
  multiply(tiles);
  for (int k = 0; k < 2; ++k)
    for (int l = 0; l < 32; ++l) {
      const float* at = &tiles.sum[l / 4 + 8 * k][l % 4 * 2];
      w.column<u32>(d[k])[l] = half_bits::float_to_f16(at[0]) | u32(half_bits::float_to_f16(at[1])) << 16;
    }
}

// tf32: m16n8k8, one element a register. The lowest 13 bits are not read.
void multiply_tf32(Warp& w, const Instruction& i) {
  need_all_lanes(w, i);
  const std::int32_t *d = w.list(i), *a = d + 4, *b = a + 4, *c = b + 2;
  const auto read = [&](std::int32_t column, int l) { return std::bit_cast<float>(w.column<u32>(column)[l] & 0xffffe000u); };
  Tiles<8> tiles;
  for (int l = 0; l < 32; ++l) {
    for (int k = 0; k < 4; ++k) tiles.a[l / 4 + 8 * (k % 2)][l % 4 + 4 * (k / 2)] = read(a[k], l);
    for (int k = 0; k < 2; ++k) tiles.b[l % 4 + 4 * k][l / 4] = read(b[k], l);
    for (int k = 0; k < 4; ++k) tiles.sum[l / 4 + 8 * (k / 2)][l % 4 * 2 + k % 2] = w.column<float>(c[k])[l];
  }
  multiply(tiles);
  for (int k = 0; k < 4; ++k)
    for (int l = 0; l < 32; ++l) w.column<float>(d[k])[l] = tiles.sum[l / 4 + 8 * (k / 2)][l % 4 * 2 + k % 2];
}

void matrix_multiply(Decoder& d, Instruction& out) {
  if (!d.take("sync") || !d.take("aligned") || !d.take("row") || !d.take("col")) d.refuse("only sync.aligned, row by col");
  const int depth = d.take("m16n8k16") ? 16 : d.take("m16n8k8") ? 8 : 0;
  if (depth == 0) d.refuse("only m16n8k16 and m16n8k8");
  const Type sum = d.take_type(), a = d.take_type(), b = d.take_type(), c = d.take_type();
  if (a != b || sum != c) d.refuse("mixed types");
  const bool is_tf32 = a == Type::tf32;
  const std::size_t num_sums = sum == Type::f32 ? 4 : 2, num_a = is_tf32 ? 4 : std::size_t(depth) / 4, num_b = num_a / 2;
  std::vector<std::int32_t> columns = columns_of(d, 0, num_sums, true);
  const auto append = [&](const std::vector<std::int32_t>& more) { columns.insert(columns.end(), more.begin(), more.end()); };
  append(columns_of(d, 1, num_a, false));
  append(columns_of(d, 2, num_b, false));
  append(columns_of(d, 3, num_sums, false));
  out.list = d.list(columns);
  if (sum == Type::f16 && a == Type::f16) out.execute = depth == 16 ? &multiply_to_f16<16> : &multiply_to_f16<8>;
  if (sum != Type::f32) return;
  if (a == Type::f16) out.execute = depth == 16 ? &multiply_to_f32<16, FromF16> : &multiply_to_f32<8, FromF16>;
  if (a == Type::bf16) out.execute = depth == 16 ? &multiply_to_f32<16, FromBF16> : &multiply_to_f32<8, FromBF16>;
  if (is_tf32 && depth == 8) out.execute = &multiply_tf32;
}

}  // namespace

void add_matrix(Table& table) {
  table["ldmatrix"] = &matrices<true>;
  table["stmatrix"] = &matrices<false>;
  table["mma"] = &matrix_multiply;
}

}  // namespace refrain::emulator::ptx
