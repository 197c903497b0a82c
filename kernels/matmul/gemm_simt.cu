// The product of f32 and of f64 matrices, in their own precision (never TF32), for any layout, size and alignment.
//
// Slices of A and B, kDepth long along k, lie in shared memory with m and n along a row, so that a thread reads four
// neighbours at once; the next slice is fetched into registers while one is multiplied, and goes to the other of two buffers.
// Sums are one chain of fused multiply-adds over k: bits depend on neither tile, alignment nor place.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/matmul/cuda/launch_gemm.cuh>

namespace refrain::matmul_kernels {

// kSide x kSide of C a block, kEach x kEach a thread, in groups of four that lie apart: neighbouring threads then read
// neighbouring addresses of shared memory.
template <int kSide_, int kEach_, int kDepth_, int kBlocks_>
struct SimtTile {
  static constexpr int kSide = kSide_, kEach = kEach_, kDepth = kDepth_, kBlocks = kBlocks_;
  static constexpr int kAcross = kSide / kEach, kThreads = kAcross * kAcross;
  static constexpr int kGroups = kEach / 4, kLd = kSide + 4;
  static_assert(kSide * kDepth == kThreads * 4);
};
using LargeSimtTile = SimtTile<128, 8, 8, 2>;
using SmallSimtTile = SimtTile<64, 4, 16, 3>;
using DoubleSimtTile = SimtTile<64, 4, 16, 2>;  // f64 takes two registers a number

// Four elements of a slice a thread, from memory to registers to shared memory.
template <class T, class Tile>
class SimtReader {
 public:
  __device__ __forceinline__ SimtReader(const GemmSource& source, std::int64_t offset, std::int64_t outer, std::int64_t extent, std::int64_t k) {
    const int index = int(threadIdx.x);
    constexpr int kAlong = Tile::kDepth / 4, kAcross = Tile::kSide / 4;
    outer_ = source.is_along_k ? index / kAlong : index % kAcross * 4;
    k_ = source.is_along_k ? index % kAlong * 4 : index / kAcross;
    const std::int64_t o = outer + outer_;
    room_ = int(extent - o < 4 ? extent - o : 4);
    from_ = static_cast<const T*>(source.data) + offset + (source.is_along_k ? o * source.ld + k + k_ : (k + k_) * source.ld + o);
  }

  // The next slice, of which `left` along k exist; what does not exist is 0.
  __device__ __forceinline__ void fetch(const GemmSource& source, std::int64_t left) {
    const int along = int(left - k_ < 4 ? left - k_ : 4);
    const int exist = room_ <= 0 || along <= 0 ? 0 : source.is_along_k ? along : room_;
    if (source.is_vectorised && exist == 4) {
      load_wide(from_, held_);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) held_[i] = i < exist ? from_[i] : T(0);
    }
    from_ += source.is_along_k ? Tile::kDepth : Tile::kDepth * source.ld;
  }

  __device__ __forceinline__ void store(const GemmSource& source, T* buffer) const {
    if (source.is_along_k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) buffer[(k_ + i) * Tile::kLd + outer_] = held_[i];
    } else {
      store_wide(held_, buffer + k_ * Tile::kLd + outer_);
    }
  }

 private:
  const T* from_;
  T held_[4];
  int outer_, k_, room_;
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) simt_gemm(const GemmTask<T> task) {
  constexpr int kSide = Tile::kSide, kEach = Tile::kEach, kDepth = Tile::kDepth, kLd = Tile::kLd, kGroups = Tile::kGroups;
  REFRAIN_SHARED(Pack<T>, a_packs, [2][kDepth * kLd * int(sizeof(T)) / 16]);
  REFRAIN_SHARED(Pack<T>, b_packs, [2][kDepth * kLd * int(sizeof(T)) / 16]);
  const TilePlace place = tile_place(task.tile_rows, task.tile_cols);
  const std::int64_t row = std::int64_t(place.row) * kSide, col = std::int64_t(place.col) * kSide;
  const int product = task.first_product + int(blockIdx.z);
  const std::int64_t first_k = std::int64_t(blockIdx.y) * task.piece;
  const std::int64_t depth = task.k - first_k < task.piece ? task.k - first_k : task.piece;
  SimtReader<T, Tile> a_reader(task.a, batch_offset(task.a, task.batch_dims, product), row, task.m, first_k);
  SimtReader<T, Tile> b_reader(task.b, batch_offset(task.b, task.batch_dims, product), col, task.n, first_k);
  const int down = int(threadIdx.x) / Tile::kAcross, across = int(threadIdx.x) % Tile::kAcross;

  T sums[kEach][kEach] = {};
  int buffer = 0;
  if (depth > 0) {
    a_reader.fetch(task.a, depth);
    b_reader.fetch(task.b, depth);
    a_reader.store(task.a, reinterpret_cast<T*>(a_packs[0]));
    b_reader.store(task.b, reinterpret_cast<T*>(b_packs[0]));
  }
  for (std::int64_t k = 0; k < depth; k += kDepth, buffer ^= 1) {
    __syncthreads();
    const bool is_last = k + kDepth >= depth;
    if (!is_last) {
      a_reader.fetch(task.a, depth - k - kDepth);
      b_reader.fetch(task.b, depth - k - kDepth);
    }
    const T* a_slice = reinterpret_cast<const T*>(a_packs[buffer]) + down * 4;
    const T* b_slice = reinterpret_cast<const T*>(b_packs[buffer]) + across * 4;
#pragma unroll
    for (int p = 0; p < kDepth; ++p) {
      T a[kGroups][4], b[kGroups][4];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        load_wide(a_slice + p * kLd + g * (kSide / kGroups), a[g]);
        load_wide(b_slice + p * kLd + g * (kSide / kGroups), b[g]);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] = fused(a[i / 4][i % 4], b[j / 4][j % 4], sums[i][j]);
      }
    }
    // The other buffer was last read before this slice's barrier.
    if (!is_last) {
      a_reader.store(task.a, reinterpret_cast<T*>(a_packs[buffer ^ 1]));
      b_reader.store(task.b, reinterpret_cast<T*>(b_packs[buffer ^ 1]));
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      T v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = sums[i][g * 4 + j];
      put<T>(task, product, row + i / 4 * (kSide / kGroups) + down * 4 + i % 4, col + g * (kSide / kGroups) + across * 4, v);
    }
  }
}

namespace {

template <class Tile, class T>
void launch_simt_gemm(std::string_view name, const Cuda& device, const GemmTask<T>& task, const GemmGrid& grid) {
  cuda::launch(name, simt_gemm<T, Tile>, {.grid = dim3(grid.tiles, grid.pieces, grid.products), .block = dim3(Tile::kThreads)}, device, task);
}

}  // namespace

void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, const GemmGrid& grid, float) {
  if (grid.is_large) launch_simt_gemm<LargeSimtTile>(name, device, task, grid);
  else launch_simt_gemm<SmallSimtTile>(name, device, task, grid);
}

void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<double>& task, const GemmGrid& grid, double) {
  launch_simt_gemm<DoubleSimtTile>(name, device, task, grid);
}

}  // namespace refrain::matmul_kernels
