// The product of 16-bit matrices on tensor cores (mma.sync m16n8k16), for any layout, size and alignment.
//
// A block makes one tile of C. Slices of A and B, kDepth long along k, travel through kStages buffers in shared memory: while
// one is multiplied the next are on their way (cp.async), and one barrier a slice is enough, since the buffer that is filled
// is the one that was multiplied before the barrier. A slice keeps the order its matrix has in memory; ldmatrix turns it as
// it is read where that is not the order the tensor cores want. Packs of 16 bytes are swizzled, so that neither the copies
// nor ldmatrix meet a bank twice. Sums are f32, over k in order: bits depend on neither tile, alignment nor place.
#pragma once

#include <refrain/kernels/common/cuda/intrinsics.cuh>
#include <refrain/kernels/matmul/cuda/gemm_task.cuh>

namespace refrain::matmul_kernels {

template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kStages_, int kBlocks_>
struct TensorCoreTile {
  static constexpr int kRows = kRows_, kCols = kCols_;              // of C a block makes
  static constexpr int kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;  // of it a warp makes
  static constexpr int kDepth = 32, kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;                          // on a multiprocessor
  static constexpr int kWarpsAcross = kCols / kWarpCols, kThreads = kRows / kWarpRows * kWarpsAcross * 32;
  static constexpr int kStageElements = (kRows + kCols) * kDepth;
  // A warp's sums on their way out, 16 rows at a time; rows are padded against bank conflicts.
  static constexpr int kOutLd = kWarpCols + 4;
  static constexpr std::size_t kSharedBytes = std::size_t(kStages) * kStageElements * 2;
  static_assert(std::size_t(kThreads / 32) * 16 * kOutLd * 4 <= kSharedBytes);
};
using LargeTile = TensorCoreTile<128, 128, 64, 32, 3, 2>;
using SmallTile = TensorCoreTile<64, 64, 32, 32, 3, 4>;

// A slice of one operand, kExtent along m or n and kDepth along k.
template <class T, bool kAlongK, int kExtent, int kDepth, int kThreads>
class SliceReader {
 public:
  static constexpr int kPack = 8, kPacksPerRow = (kAlongK ? kDepth : kExtent) / kPack;
  static constexpr int kPacks = kExtent * kDepth / kPack / kThreads;  // a thread's
  static_assert(kPacks * kThreads * kPack == kExtent * kDepth && kDepth == 32);
  // A thread's packs are below each other in memory: rows of it this far apart.
  static constexpr int kRowsApart = kThreads / kPacksPerRow;
  static_assert(kThreads % kPacksPerRow == 0);

  // Where element (outer, k) lies in a buffer; k or outer is that of a pack's first element.
  static __device__ __forceinline__ int place(int outer, int k) {
    if constexpr (kAlongK) return outer * kDepth + (((k / kPack) ^ (outer / 2 & 3)) * kPack);
    else return k * kExtent + (((outer / kPack) ^ (k & 7)) * kPack);
  }

  __device__ __forceinline__ SliceReader(const GemmSource& source, std::int64_t offset, std::int64_t outer, std::int64_t extent, std::int64_t k)
      : from_(static_cast<const T*>(source.data) + offset + (kAlongK ? (outer + outer_of(0)) * source.ld + k + k_of(0) : (k + k_of(0)) * source.ld + outer + outer_of(0))),
        limit_(int(extent - outer < kExtent ? extent - outer : kExtent)) {}

  // Starts copying the next slice, of which `left` along k exist; what does not exist is 0.
  template <bool kVectorised>
  __device__ __forceinline__ void read(T* buffer, std::int64_t left, const GemmSource& source) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      T* to = buffer + place(outer_of(i), k_of(i));
      const T* from = from_ + i * kRowsApart * source.ld;
      if (kVectorised || source.is_vectorised) {
        cuda::cp_async16(to, from, outer_of(i) < limit_ && k_of(i) < left);
      } else {
        Pack<T> pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          const bool exists = outer_of(i) + (kAlongK ? 0 : j) < limit_ && k_of(i) + (kAlongK ? j : 0) < left;
          pack[j] = exists ? from[j] : narrow<T>(0.0f);
        }
        store_pack(to, pack);
      }
    }
    from_ += kAlongK ? kDepth : kDepth * source.ld;
  }

 private:
  static __device__ __forceinline__ int index(int i) { return int(threadIdx.x) + i * kThreads; }
  static __device__ __forceinline__ int outer_of(int i) { return kAlongK ? index(i) / kPacksPerRow : index(i) % kPacksPerRow * kPack; }
  static __device__ __forceinline__ int k_of(int i) { return kAlongK ? index(i) % kPacksPerRow * kPack : index(i) / kPacksPerRow; }

  const T* from_;
  int limit_;  // what of kExtent exists
};

// Fragments of 16 x 16, whose first row along m or n is `outer`: four registers for A, two times two for B.
template <bool kAlongK, class Reader, class T>
__device__ __forceinline__ void load_a(unsigned (&fragment)[4], const T* buffer, int outer, int k) {
  const int lane = int(threadIdx.x) % 32;
  if constexpr (kAlongK) cuda::ldmatrix_x4(fragment, buffer + Reader::place(outer + lane % 16, k + lane / 16 * 8));
  else cuda::ldmatrix_x4_trans(fragment, buffer + Reader::place(outer + lane / 8 % 2 * 8, k + lane % 8 + lane / 16 * 8));
}
template <bool kAlongK, class Reader, class T>
__device__ __forceinline__ void load_b(unsigned (&fragment)[4], const T* buffer, int outer, int k) {
  const int lane = int(threadIdx.x) % 32;
  if constexpr (kAlongK) cuda::ldmatrix_x4(fragment, buffer + Reader::place(outer + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
  else cuda::ldmatrix_x4_trans(fragment, buffer + Reader::place(outer + lane / 16 * 8, k + lane % 16));
}

template <class T>
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  if constexpr (std::is_same_v<T, cuda::half>) cuda::mma_m16n8k16_f16(sums, a, b);
  else cuda::mma_m16n8k16_bf16(sums, a, b);
}

template <class T, class Tile, bool kAAlongK, bool kBAlongK, bool kVectorised>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) tensor_core_gemm(const GemmTask<float> task) {
  REFRAIN_DYNAMIC_SHARED(T, shared);
  constexpr int kDepth = Tile::kDepth, kStages = Tile::kStages;
  constexpr int kRowParts = Tile::kWarpRows / 16, kColParts = Tile::kWarpCols / 16;
  using AReader = SliceReader<T, kAAlongK, Tile::kRows, kDepth, Tile::kThreads>;
  using BReader = SliceReader<T, kBAlongK, Tile::kCols, kDepth, Tile::kThreads>;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const TilePlace place = tile_place(task.tile_rows, task.tile_cols);
  const std::int64_t row = std::int64_t(place.row) * Tile::kRows, col = std::int64_t(place.col) * Tile::kCols;
  const int product = task.first_product + int(blockIdx.z);
  const std::int64_t first_k = std::int64_t(blockIdx.y) * task.piece;
  const std::int64_t depth = task.k - first_k < task.piece ? task.k - first_k : task.piece;
  const int steps = int((depth + kDepth - 1) / kDepth);

  AReader a_reader(task.a, batch_offset(task.a, task.batch_dims, product), row, task.m, first_k);
  BReader b_reader(task.b, batch_offset(task.b, task.batch_dims, product), col, task.n, first_k);
  const auto read = [&](int step) {
    T* buffer = shared + step % kStages * Tile::kStageElements;
    const std::int64_t left = depth - std::int64_t(step) * kDepth;
    a_reader.template read<kVectorised>(buffer, left, task.a);
    b_reader.template read<kVectorised>(buffer + Tile::kRows * kDepth, left, task.b);
  };

  float sums[kRowParts][2 * kColParts][4] = {};
  const int warp_row = warp / Tile::kWarpsAcross * Tile::kWarpRows, warp_col = warp % Tile::kWarpsAcross * Tile::kWarpCols;
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) read(step);
    cuda::cp_async_commit();  // groups are counted: also an empty one
  }
  for (int step = 0; step < steps; ++step) {
    cuda::cp_async_wait<kStages - 2>();
    __syncthreads();
    if (step + kStages - 1 < steps) read(step + kStages - 1);
    cuda::cp_async_commit();
    const T* a_buffer = shared + step % kStages * Tile::kStageElements;
    const T* b_buffer = a_buffer + Tile::kRows * kDepth;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[kRowParts][4], b[kColParts][4];
#pragma unroll
      for (int i = 0; i < kRowParts; ++i) load_a<kAAlongK, AReader>(a[i], a_buffer, warp_row + i * 16, k);
#pragma unroll
      for (int j = 0; j < kColParts; ++j) load_b<kBAlongK, BReader>(b[j], b_buffer, warp_col + j * 16, k);
#pragma unroll
      for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
        for (int j = 0; j < kColParts; ++j) {
          multiply<T>(sums[i][2 * j], a[i], b[j][0], b[j][1]);
          multiply<T>(sums[i][2 * j + 1], a[i], b[j][2], b[j][3]);
        }
      }
    }
  }

  // Sums leave through shared memory, so that a thread has eight neighbours to finish and store at once.
  cuda::cp_async_wait<0>();
  __syncthreads();
  float* out = reinterpret_cast<float*>(shared) + warp * 16 * Tile::kOutLd;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * kColParts; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Pack<float, 8> pair;
        pair[0] = sums[i][j][2 * half];
        pair[1] = sums[i][j][2 * half + 1];
        store_pack(out + (lane / 4 + half * 8) * Tile::kOutLd + j * 8 + lane % 4 * 2, pair);
      }
    }
    __syncwarp();
    constexpr int kGroups = Tile::kWarpCols / 8;
#pragma unroll
    for (int g = 0; g < 16 * kGroups / 32; ++g) {
      const int line = (lane + g * 32) / kGroups, group = (lane + g * 32) % kGroups;
      float v[8];
      load_wide(out + line * Tile::kOutLd + group * 8, v);
      put<T>(task, product, row + warp_row + i * 16 + line, col + warp_col + group * 8, v);
    }
    __syncwarp();
  }
}

// Launches the kernel for the operands' layouts; a large tile for matrices of whole packs only.
template <class T, class Tile, bool kVectorised>
void launch_tensor_core_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, dim3 grid) {
  const auto launch = [&](auto a_along_k, auto b_along_k) {
    cuda::launch(name, tensor_core_gemm<T, Tile, decltype(a_along_k)::value, decltype(b_along_k)::value, kVectorised>,
                 {.grid = grid, .block = dim3(Tile::kThreads), .shared_bytes = Tile::kSharedBytes}, device, task);
  };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  if (task.a.is_along_k) task.b.is_along_k ? launch(yes, yes) : launch(yes, no);
  else task.b.is_along_k ? launch(no, yes) : launch(no, no);
}

template <class T>
void launch_tensor_core_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, dim3 grid, bool is_large) {
  const bool is_vectorised = task.a.is_vectorised && task.b.is_vectorised;
  if (!is_vectorised) launch_tensor_core_gemm<T, SmallTile, false>(name, device, task, grid);
  else if (is_large) launch_tensor_core_gemm<T, LargeTile, true>(name, device, task, grid);
  else launch_tensor_core_gemm<T, SmallTile, true>(name, device, task, grid);
}

}  // namespace refrain::matmul_kernels
