// Models of ldmatrix and mma.sync, with the fragment layouts of the PTX ISA.
#pragma once

#include <refrain/kernels/emulator/thread.h>

namespace refrain::emulator {

// `count` 8x8 matrices of 16-bit elements; lane 8 m + r holds the address of row r of matrix m.
void ldmatrix(unsigned* fragments, const void* row, int count, bool is_transposed, Site site);
// d[16, 8] += a[16, 16] b[16, 8], f32 sums over k in ascending order.
void mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, bool is_bf16, Site site);

}  // namespace refrain::emulator
