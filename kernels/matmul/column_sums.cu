// Sums over the rows of a matrix: a bias's gradient. Two stages: a block sums its columns over one piece of the rows, then the
// pieces are added in order; their number depends on shapes and the workspace's size alone.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/matmul/cuda/epilogue.cuh>
#include <refrain/kernels/matmul/cuda/product.h>

#include <algorithm>

namespace refrain {

namespace matmul_kernels {

constexpr int kSumLanes = 32, kSumLines = 8;

// Sums of kWidth columns a thread, every eighth row of the piece; the block's eight lines are added in order. Written to
// partials[piece, cols], or where there is one piece to out.
template <class T, int kWidth>
__global__ void __launch_bounds__(kSumLanes* kSumLines) sum_rows(const T* x, std::int64_t rows, std::int64_t cols, std::int64_t piece, accumulator<T>* partials,
                                                                 void* out, bool is_out_wide) {
  using A = accumulator<T>;
  REFRAIN_SHARED(A, slots, [kSumLines][kSumLanes * kWidth]);
  const int lane = int(threadIdx.x) % kSumLanes, line = int(threadIdx.x) / kSumLanes;
  const std::int64_t first = std::int64_t(blockIdx.x) * kSumLanes * kWidth, col = first + lane * kWidth;
  const std::int64_t begin = std::int64_t(blockIdx.y) * piece, end = rows - begin < piece ? rows : begin + piece;
  A total[kWidth] = {};
  if (col < cols) {
    for (std::int64_t row = begin + line; row < end; row += kSumLines) {
      A v[kWidth];
      load_wide(x + row * cols + col, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) total[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) slots[line][lane + i * kSumLanes] = total[i];
  __syncthreads();
  for (int c = int(threadIdx.x); c < kSumLanes * kWidth; c += kSumLanes * kSumLines) {
    if (first + c >= cols) break;
    const int slot = c / kWidth + c % kWidth * kSumLanes;
    A sum = slots[0][slot];
#pragma unroll
    for (int i = 1; i < kSumLines; ++i) sum += slots[i][slot];
    if (partials) partials[std::int64_t(blockIdx.y) * cols + first + c] = sum;
    else if (is_out_wide) static_cast<A*>(out)[first + c] = sum;
    else static_cast<T*>(out)[first + c] = narrow<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(256) add_row_pieces(const accumulator<T>* partials, int pieces, std::int64_t cols, void* out, bool is_out_wide) {
  using A = accumulator<T>;
  const std::int64_t col = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  A sum = partials[col];
  for (int piece = 1; piece < pieces; ++piece) sum += partials[piece * cols + col];
  if (is_out_wide) static_cast<A*>(out)[col] = sum;
  else static_cast<T*>(out)[col] = narrow<T>(sum);
}

namespace {

template <class T, int kWidth>
void run_width(const Cuda& device, const cuda::ColumnSums& k) {
  using A = accumulator<T>;
  constexpr std::int64_t kWantedBlocks = 512, kMinRows = 64, kMaxPieces = 1024;
  const std::int64_t blocks = cuda::ceil_div(k.cols, kSumLanes * kWidth);
  const std::int64_t room = k.workspace == nullptr ? 0 : k.workspace_bytes / std::int64_t(sizeof(A)) / k.cols;
  const std::int64_t wanted = std::max<std::int64_t>(1, std::min({kWantedBlocks / blocks, k.rows / kMinRows, room, kMaxPieces}));
  const std::int64_t piece = std::max<std::int64_t>(1, cuda::ceil_div(k.rows, wanted));
  const std::int64_t pieces = std::max<std::int64_t>(1, cuda::ceil_div(k.rows, piece));
  A* partials = pieces > 1 ? static_cast<A*>(k.workspace) : nullptr;
  const bool is_out_wide = k.sums_dtype != k.dtype;
  cuda::launch(k.name, sum_rows<T, kWidth>, {.grid = dim3(unsigned(blocks), unsigned(pieces)), .block = dim3(kSumLanes * kSumLines)}, device,
               static_cast<const T*>(k.x), k.rows, k.cols, piece, partials, k.sums, is_out_wide);
  if (pieces == 1) return;
  cuda::launch(k.name, add_row_pieces<T>, {.grid = dim3(unsigned(cuda::ceil_div(k.cols, 256))), .block = dim3(256)}, device, static_cast<const A*>(partials),
               int(pieces), k.cols, k.sums, is_out_wide);
}

}  // namespace

}  // namespace matmul_kernels

void cuda::run_column_sums(const Cuda& device, const ColumnSums& k) {
  if (k.cols == 0) return;
  cuda::dispatch_floating(k.dtype, k.name, [&]<class T>(T) {
    constexpr int kWidth = Pack<T>::kSize;
    if (is_aligned(k.x, 16) && k.cols % kWidth == 0) matmul_kernels::run_width<T, kWidth>(device, k);
    else matmul_kernels::run_width<T, 1>(device, k);
  });
}

}  // namespace refrain
