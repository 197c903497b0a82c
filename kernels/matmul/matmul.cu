// Refrain's own products: how they are cut, and the sums over pieces of k.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/matmul/cuda/launch_gemm.cuh>

#include <algorithm>

namespace refrain {

namespace matmul_kernels {

// Adds up the pieces in order and finishes: four columns a thread.
template <class T>
__global__ void __launch_bounds__(256) finish_pieces(const GemmTask<accumulator<T>> task, int num_pieces) {
  using A = accumulator<T>;
  const std::int64_t groups = (task.n + 3) / 4, lines = std::int64_t(task.num_products) * task.m;
  const std::int64_t index = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= groups * lines) return;
  const std::int64_t line = index / groups, col = index % groups * 4;
  const int count = int(task.n - col < 4 ? task.n - col : 4);
  const A* from = task.epilogue.partials + line * task.n + col;
  A total[4], part[4];
  load_some(from, count, task.epilogue.are_partials_vectorised, total);
  for (int piece = 1; piece < num_pieces; ++piece) {
    load_some(from + piece * lines * task.n, count, task.epilogue.are_partials_vectorised, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] += part[i];
  }
  finish<T>(task.epilogue, line / task.m, line % task.m, col, count, total);
}

template <class T>
__global__ void __launch_bounds__(256) activate_values(Activation activation, const T* pre, T* c, std::int64_t rows, std::int64_t n, std::int64_t ldc,
                                                       bool is_vectorised) {
  constexpr int kWidth = Pack<T>::kSize;
  const std::int64_t groups = (n + kWidth - 1) / kWidth, index = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= groups * rows) return;
  const std::int64_t col = index % groups * kWidth, at = index / groups * ldc + col;
  const int count = int(n - col < kWidth ? n - col : kWidth);
  accumulator<T> v[kWidth];
  load_some(pre + at, count, is_vectorised, v);
  activate(activation, v);
  store_some(v, count, is_vectorised, c + at);
}

namespace {

constexpr std::int64_t kMinLargeTiles = 64;    // below, small tiles keep more multiprocessors busy
constexpr std::int64_t kWantedBlocks = 256;
constexpr std::int64_t kMinPiece = 512;        // of k
constexpr std::int64_t kMaxPieces = 32;
constexpr std::int64_t kMaxGridZ = 65535;

// How a product is cut: by its sizes, and the workspace's, alone.
struct Cut {
  std::int64_t side, tile_rows, tile_cols, piece, pieces = 1;
  Cut(const cuda::Product& p, std::int64_t k, std::int64_t sum_bytes, bool may_be_large) {
    const std::int64_t large = cuda::ceil_div(p.m, 128) * cuda::ceil_div(p.n, 128) * p.num_products();
    side = may_be_large && p.m > 64 && p.n > 64 && large >= kMinLargeTiles ? 128 : 64;
    tile_rows = cuda::ceil_div(p.m, side);
    tile_cols = cuda::ceil_div(p.n, side);
    piece = std::max<std::int64_t>(k, 1);
    const std::int64_t sums = p.m * p.n * p.num_products() * sum_bytes;
    const std::int64_t room = p.workspace == nullptr ? 0 : (p.workspace_bytes - 15) / sums;  // 15: partial sums start at a multiple of 16
    const std::int64_t wanted = std::min({kWantedBlocks / (tile_rows * tile_cols * p.num_products()), k / kMinPiece, room, kMaxPieces});
    if (!p.may_split_k || wanted < 2) return;
    constexpr std::int64_t kDepth = 32;
    piece = cuda::ceil_div(cuda::ceil_div(k, wanted), kDepth) * kDepth;
    pieces = cuda::ceil_div(k, piece);
  }
};

template <class T>
GemmSource source_of(const cuda::ProductOperand& operand, std::int64_t rows, std::int64_t cols, bool is_along_k) {
  // Rows in memory are whole packs, so that a pack is inside or outside. SIMT kernels take four elements at a time.
  constexpr std::int64_t kPack = std::is_same_v<T, accumulator<T>> ? 4 : 8;
  const std::int64_t width = operand.is_transposed ? rows : cols;
  bool is_vectorised = cuda::is_aligned(operand.data, 16) && operand.ld % kPack == 0 && width % kPack == 0;
  for (std::int64_t stride : operand.batch_strides) is_vectorised = is_vectorised && stride % kPack == 0;
  const auto& s = operand.batch_strides;
  return {.data = operand.data, .ld = operand.ld, .batch_strides = {s[0], s[1], s[2]}, .is_along_k = is_along_k, .is_vectorised = is_vectorised};
}

template <class T>
void run_as(const Cuda& device, const cuda::Product& p) {
  using A = accumulator<T>;
  const std::int64_t k = p.alpha == 0 ? 0 : p.k;
  constexpr std::int64_t kWidth = std::is_same_v<T, A> ? 4 : 8;
  const GemmSource a = source_of<T>(p.a, p.m, p.k, !p.a.is_transposed), b = source_of<T>(p.b, p.k, p.n, p.b.is_transposed);
  const Cut cut(p, k, sizeof(A), std::is_same_v<T, float> || (!std::is_same_v<T, double> && a.is_vectorised && b.is_vectorised));
  GemmTask<A> task{.m = p.m, .n = p.n, .k = k, .a = a, .b = b,
                   .batch_dims = {int(p.batch[0]), int(p.batch[1]), int(p.batch[2])}, .first_product = 0, .num_products = int(p.num_products()),
                   .tile_rows = int(cut.tile_rows), .tile_cols = int(cut.tile_cols), .piece = cut.piece, .epilogue = {}};
  Epilogue<A>& e = task.epilogue;
  e = {.c = p.c, .pre = p.pre_activation, .bias = p.bias, .row_bias = p.row_bias, .partials = nullptr, .ldc = p.ldc, .c_batch_stride = p.c_batch_stride,
       .alpha = A(p.alpha), .beta = A(p.beta), .activation = p.activation, .is_c_wide = p.c_dtype != p.dtype, .is_bias_wide = p.bias_dtype != p.dtype,
       .is_vectorised = cuda::is_aligned(p.c, 16) && cuda::is_aligned(p.pre_activation, 16) && p.ldc % kWidth == 0 && p.n % kWidth == 0 && p.c_batch_stride % kWidth == 0,
       .are_partials_vectorised = p.n % kWidth == 0};
  if (cut.pieces > 1) e.partials = reinterpret_cast<A*>((reinterpret_cast<std::uintptr_t>(p.workspace) + 15) / 16 * 16);
  for (std::int64_t first = 0; first < p.num_products(); first += kMaxGridZ) {
    task.first_product = int(first);
    const GemmGrid grid{.tiles = unsigned(cut.tile_rows * cut.tile_cols), .pieces = unsigned(cut.pieces),
                        .products = unsigned(std::min(kMaxGridZ, p.num_products() - first)), .is_large = cut.side == 128};
    launch_gemm(p.name, device, task, grid, T{});
  }
  if (cut.pieces == 1) return;
  const std::int64_t threads = cuda::ceil_div(p.n, 4) * p.m * p.num_products();
  cuda::launch(p.name, finish_pieces<T>, {.grid = dim3(unsigned(cuda::ceil_div(threads, 256))), .block = dim3(256)}, device, task, int(cut.pieces));
}

}  // namespace

}  // namespace matmul_kernels

void cuda::run_own_product(const Cuda& device, const Product& product) {
  if (product.m == 0 || product.n == 0 || product.num_products() == 0) return;
  cuda::dispatch_floating(product.dtype, product.name, [&]<class T>(T) { matmul_kernels::run_as<T>(device, product); });
}

void cuda::run_activation(const Cuda& device, std::string_view name, DType dtype, Activation activation, const void* pre, void* c, std::int64_t rows,
                          std::int64_t n, std::int64_t ldc) {
  cuda::dispatch_floating(dtype, name, [&]<class T>(T) {
    constexpr std::int64_t kWidth = Pack<T>::kSize;
    const bool is_vectorised = is_aligned(pre, 16) && is_aligned(c, 16) && n % kWidth == 0 && ldc % kWidth == 0;
    const std::int64_t blocks = ceil_div(ceil_div(n, kWidth) * rows, 256);
    launch(name, matmul_kernels::activate_values<T>, {.grid = dim3(unsigned(blocks)), .block = dim3(256)}, device, activation, static_cast<const T*>(pre),
           static_cast<T*>(c), rows, n, ldc, is_vectorised);
  });
}

}  // namespace refrain
