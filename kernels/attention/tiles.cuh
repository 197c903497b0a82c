// Tiles of 16-bit numbers in shared memory and their products on the tensor cores (mma.sync m16n8k16, f32 sums).
//
// A tile's rows are D numbers, in chunks of 16 bytes. Chunks of a row are permuted by the row's number, so that the eight
// rows that ldmatrix reads at once lie in different banks for every D that is a multiple of 16.
//
// A warp owns R groups of 16 rows of a product. Thread t of a warp holds of each 16x8 fragment the elements
// e = 0 … 3: row t / 4 + 8 · (e / 2), column 2 · (t % 4) + e % 2. Two such fragments side by side, rounded to 16 bits, are the
// 16x16 left operand of the next product: probabilities go from one product to the next without leaving registers.
#pragma once

#include <refrain/kernels/attention/pairs.cuh>
#include <refrain/kernels/common/cuda/intrinsics.cuh>

namespace refrain::attention_kernels {

inline constexpr int kWarps = 4, kThreads = kWarps * cuda::kWarp;

__device__ __forceinline__ int lane_of_thread() { return int(threadIdx.x) % cuda::kWarp; }
__device__ __forceinline__ int warp_of_thread() { return int(threadIdx.x) / cuda::kWarp; }

// Where chunk `chunk` of row `row` lies.
template <int D>
__device__ __forceinline__ int place(int row, int chunk) {
  static_assert(D % 16 == 0);
  constexpr int kChunks = D / 8;
  // The largest power of two that divides the number of chunks, at most 8: within that many, chunks are permuted.
  constexpr int kGroup = (kChunks & -kChunks) < 8 ? (kChunks & -kChunks) : 8;
  return (row * kChunks + (chunk ^ (row / (8 / kGroup) & (kGroup - 1)))) * 8;
}

// Rows first … first + kRows of a head into a tile, zeros from row `total` on. Arrives at the next wait for asynchronous copies
// and barrier.
template <int D, int kRows, class T>
__device__ __forceinline__ void load_rows(T* tile, const Heads<const T>& heads, const T* rows, int first, int total) {
  constexpr int kChunks = D / 8;
  // Unrolled loops keep their addresses in registers, which the widest heads need for sums.
  [[maybe_unused]] constexpr int kUnroll = D >= 128 ? 1 : 4;
  if (heads.is_aligned) {
#pragma unroll kUnroll
    for (int i = 0; i < (kRows * kChunks + kThreads - 1) / kThreads; ++i) {
      const int at = int(threadIdx.x) + i * kThreads, row = at / kChunks, chunk = at % kChunks;
      if (kRows * kChunks % kThreads != 0 && at >= kRows * kChunks) break;
      const bool is_inside = first + row < total;
      cuda::cp_async16(tile + place<D>(row, chunk), rows + (is_inside ? first + row : 0) * heads.row_step + chunk * 8, is_inside);
    }
  } else {
#pragma unroll 1
    for (int at = int(threadIdx.x); at < kRows * D; at += kThreads) {
      const int row = at / D, d = at % D;
      tile[place<D>(row, d / 8) + d % 8] = first + row < total ? rows[(first + row) * heads.row_step + d] : cuda::narrow<T>(0.f);
    }
  }
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], cuda::half) {
  cuda::mma_m16n8k16_f16(c, a, b);
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], cuda::bfloat) {
  cuda::mma_m16n8k16_bf16(c, a, b);
}

// The left operands of a warp's R groups of rows from `first`, columns 16k …; `flip` is xored in (a sign, or nothing).
template <class T, int D, int R>
__device__ __forceinline__ void load_left(unsigned (&a)[R][4], const T* tile, int first, int k, unsigned flip) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int r = 0; r < R; ++r) {
    cuda::ldmatrix_x4(a[r], tile + place<D>(first + 16 * r + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (unsigned& pair : a[r]) pair ^= flip;
  }
}

// c = A·Bᵀ: A the rows of `left` from `first`, B the 8N rows of `right`.
template <class T, int D, int R, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[R][N][4], const T* left, int first, unsigned flip, const T* right) {
  static_assert(N % 2 == 0);
  const int lane = lane_of_thread();
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[r][n][e] = 0;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    unsigned a[R][4];
    load_left<T, D, R>(a, left, first, k, flip);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      unsigned b[4];
      cuda::ldmatrix_x4(b, right + place<D>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      const unsigned lower[2] = {b[0], b[1]}, upper[2] = {b[2], b[3]};
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply(c[r][2 * n], a[r], lower, T{});
        multiply(c[r][2 * n + 1], a[r], upper, T{});
      }
    }
  }
}

// c += P·B: P as left operands in registers, B the 8N rows of `right`.
template <class T, int D, int R, int N>
__device__ __forceinline__ void accumulate(float (&c)[R][D / 8][4], const unsigned (&p)[R][N / 2][4], const T* right) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int k = 0; k < N / 2; ++k) {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      unsigned b[4];
      cuda::ldmatrix_x4_trans(b, right + place<D>(16 * k + lane % 16, 2 * n + lane / 16));
      const unsigned lower[2] = {b[0], b[1]}, upper[2] = {b[2], b[3]};
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply(c[r][2 * n], p[r][k], lower, T{});
        multiply(c[r][2 * n + 1], p[r][k], upper, T{});
      }
    }
  }
}

template <class T>
__device__ __forceinline__ unsigned round_pair(float lower, float upper) {
  const T pair[2] = {cuda::narrow<T>(lower), cuda::narrow<T>(upper)};
  unsigned bits;
  memcpy(&bits, pair, sizeof bits);
  return bits;
}

// Fragments of a product, rounded, as left operands of the next.
template <class T, int R, int N>
__device__ __forceinline__ void round_to_left(unsigned (&a)[R][N / 2][4], const float (&c)[R][N][4]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int k = 0; k < N / 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[r][k][i] = round_pair<T>(c[r][2 * k + i / 2][i % 2 * 2], c[r][2 * k + i / 2][i % 2 * 2 + 1]);
}

// A warp's rows times factor[r][row / 8], rounded, to rows first … of a head, none from row `total` on. `tile` holds the block's
// rows, of which the warp overwrites its own.
template <int D, int R, class T>
__device__ __forceinline__ void store_rows(const Heads<T>& heads, T* rows, int first, int total, T* tile,
                                           const float (&c)[R][D / 8][4], const float (&factor)[R][2]) {
  constexpr int kChunks = D / 8;
  const int lane = lane_of_thread(), own = warp_of_thread() * 16 * R;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < kChunks; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned pair = round_pair<T>(c[r][n][2 * h] * factor[r][h], c[r][n][2 * h + 1] * factor[r][h]);
        *reinterpret_cast<unsigned*>(tile + place<D>(own + 16 * r + 8 * h + lane / 4, n) + lane % 4 * 2) = pair;
      }
  __syncwarp();
  if (heads.is_aligned) {
#pragma unroll 4
    for (int at = lane; at < 16 * R * kChunks; at += cuda::kWarp) {
      const int row = own + at / kChunks, chunk = at % kChunks;
      if (first + row < total)
        cuda::store_pack(rows + (first + row) * heads.row_step + chunk * 8, cuda::load_pack(tile + place<D>(row, chunk)));
    }
  } else {
#pragma unroll 1
    for (int at = lane; at < 16 * R * D; at += cuda::kWarp) {
      const int row = own + at / D, d = at % D;
      if (first + row < total) rows[(first + row) * heads.row_step + d] = tile[place<D>(row, d / 8) + d % 8];
    }
  }
}

}  // namespace refrain::attention_kernels
