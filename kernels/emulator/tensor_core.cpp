#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/race.h>
#include <refrain/kernels/emulator/tensor_core.h>

#include <cuda_fp16.h>

#include <cstring>

namespace refrain::emulator {

namespace {

struct LdmatrixArgument {
  unsigned* fragments;
  const void* row;
  int count;
  bool is_transposed;
};

void ldmatrix_operation(void** arguments, unsigned mask) {
  if (mask != ~0u) throw Error("ldmatrix: a warp of fewer than 32 lanes");
  auto** lanes = reinterpret_cast<LdmatrixArgument**>(arguments);
  Block& block = *Block::current();
  const unsigned first_thread = block.now().seen.warp * 32;
  const bool is_transposed = lanes[0]->is_transposed;
  for (unsigned m = 0; m < unsigned(lanes[0]->count); ++m) {
    std::uint16_t matrix[8][8];
    for (unsigned row = 0; row < 8; ++row) {
      const void* address = lanes[m * 8 + row]->row;
      block.shared().check(address, 16, "ldmatrix");
      note_read(address, 16, first_thread + m * 8 + row);
      std::memcpy(matrix[row], address, 16);
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned row = lane / 4, column = lane % 4 * 2;
      const unsigned low = is_transposed ? matrix[column][row] : matrix[row][column];
      const unsigned high = is_transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      lanes[lane]->fragments[m] = low | high << 16;
    }
  }
}

struct MmaArgument {
  float* d;
  const unsigned *a, *b;
};

float widen_bf16(unsigned bits) {
  const unsigned wide = bits << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
float widen_f16(unsigned bits) {
  __half_raw value;
  value.x = static_cast<unsigned short>(bits);
  return __half2float(__half(value));
}

template <bool kIsBf16>
void mma_operation(void** arguments, unsigned mask) {
  if (mask != ~0u) throw Error("mma.sync: a warp of fewer than 32 lanes");
  auto** lanes = reinterpret_cast<MmaArgument**>(arguments);
  const auto low = [](unsigned pair) { return kIsBf16 ? widen_bf16(pair & 0xffff) : widen_f16(pair & 0xffff); };
  const auto high = [](unsigned pair) { return kIsBf16 ? widen_bf16(pair >> 16) : widen_f16(pair >> 16); };
  alignas(64) float a[16][16], b[16][8], d[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = group + (i & 1) * 8, column = pair + (i >> 1) * 8;
      a[row][column] = low(lanes[lane]->a[i]);
      a[row][column + 1] = high(lanes[lane]->a[i]);
      d[group + (i >> 1) * 8][pair + (i & 1)] = lanes[lane]->d[i];
    }
    for (unsigned i = 0; i < 2; ++i) {
      b[pair + i * 8][group] = low(lanes[lane]->b[i]);
      b[pair + i * 8 + 1][group] = high(lanes[lane]->b[i]);
    }
  }
  // A row at a time, as in ptx/matrix.cpp: g++ 12 gave wrong sums for the plain loop with AVX-512.
  for (int row = 0; row < 16; ++row) {
    float sums[8];
    std::memcpy(sums, d[row], sizeof sums);
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    std::memcpy(d[row], sums, sizeof sums);
  }
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i) lanes[lane]->d[i] = d[lane / 4 + (i >> 1) * 8][lane % 4 * 2 + (i & 1)];
}

}  // namespace

void ldmatrix(unsigned* fragments, const void* row, int count, bool is_transposed, Site site) {
  LdmatrixArgument argument{fragments, row, count, is_transposed};
  warp_operation(~0u, &ldmatrix_operation, &argument, site, ".ldmatrix");
}

void mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, bool is_bf16, Site site) {
  MmaArgument argument{d, a, b};
  warp_operation(~0u, is_bf16 ? &mma_operation<true> : &mma_operation<false>, &argument, site, ".mma");
}

}  // namespace refrain::emulator
