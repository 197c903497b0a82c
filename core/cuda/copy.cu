// Strided copies and fills. Neighbours are copied in units as large as addresses and strides allow, up to 16 bytes; transposed
// data goes through square tiles in shared memory, so that both sides are read and written along their rows.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/core/cuda/copy.h>
#include <refrain/core/cuda/strided.cuh>

#include <algorithm>

namespace refrain {

namespace copy_kernels {

using cuda::Divisor;
using cuda::StridedIndex;

struct alignas(16) Unit16 {
  std::uint64_t low, high;
};

constexpr int kThreads = 256, kTile = 32, kTileRows = 8;

template <class U>
__global__ __launch_bounds__(kThreads) void copy_elements(StridedIndex<2> index, U* to, const U* from) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= index.numel) return;
  std::int32_t at[2];
  index.offsets(i, at);
  to[at[0]] = from[at[1]];
}

// Two dims of the views: `rows` lies behind each other in `from`, `columns` in `to`.
struct Transposition {
  std::uint32_t columns, rows;
  std::int32_t to_row, from_column;  // steps of a row in `to`, of a column in `from`
  Divisor tiles_of_columns, tiles_of_rows;
  StridedIndex<2> batch;  // the other dims
};

template <class U>
__global__ __launch_bounds__(kTile* kTileRows) void copy_transposed(Transposition shape, U* to, const U* from) {
  REFRAIN_SHARED(U, tile, [kTile][kTile + 1]);  // a column more: a column's elements are in different banks
  const std::uint32_t lines = shape.tiles_of_columns.quotient(blockIdx.x), batch = shape.tiles_of_rows.quotient(lines);
  const std::uint32_t column0 = (blockIdx.x - lines * shape.tiles_of_columns.value) * kTile;
  const std::uint32_t row0 = (lines - batch * shape.tiles_of_rows.value) * kTile;
  std::int32_t at[2];
  shape.batch.offsets(batch, at);
  const std::uint32_t x = threadIdx.x % kTile, y = threadIdx.x / kTile;
#pragma unroll
  for (std::uint32_t i = 0; i < kTile; i += kTileRows) {
    const std::uint32_t column = column0 + y + i, row = row0 + x;
    if (column >= shape.columns || row >= shape.rows) continue;
    tile[y + i][x] = from[at[1] + std::int32_t(row) + std::int32_t(column) * shape.from_column];
  }
  __syncthreads();
#pragma unroll
  for (std::uint32_t i = 0; i < kTile; i += kTileRows) {
    const std::uint32_t column = column0 + x, row = row0 + y + i;
    if (column >= shape.columns || row >= shape.rows) continue;
    to[at[0] + std::int32_t(column) + std::int32_t(row) * shape.to_row] = tile[x][y + i];
  }
}

// One run onto itself, some way off: one block, which reads a piece whole before it writes it. Rare, so only right.
template <class U>
__global__ __launch_bounds__(1024) void move_run(U* to, const U* from, std::int64_t numel) {
  constexpr std::int64_t kPiece = 1024;
  const bool is_upwards = to < from;
  for (std::int64_t done = 0; done < numel; done += kPiece) {
    const std::int64_t i = is_upwards ? done + threadIdx.x : numel - 1 - done - threadIdx.x;
    const bool is_mine = i >= 0 && i < numel;
    U value{};
    if (is_mine) value = from[i];
    __syncthreads();
    if (is_mine) to[i] = value;
    __syncthreads();
  }
}

template <class U>
__global__ __launch_bounds__(kThreads) void fill_elements(StridedIndex<1> index, U* to, U value) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= index.numel) return;
  std::int32_t at[1];
  index.offsets(i, at);
  to[at[0]] = value;
}

// `head` elements up to the first multiple of 16 bytes, whole units, and what is left.
template <class U>
__global__ __launch_bounds__(kThreads) void fill_run(U* to, std::int64_t numel, std::int64_t head, U value, Unit16 unit) {
  constexpr std::int64_t kEach = 16 / std::int64_t(sizeof(U));
  const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t units = (numel - head) / kEach, tail = head + units * kEach;
  if (i < units) reinterpret_cast<Unit16*>(to + head)[i] = unit;
  if (i < head) to[i] = value;
  if (i < numel - tail) to[tail + i] = value;
}

}  // namespace copy_kernels

namespace cuda {

namespace {

using namespace copy_kernels;
using View = MergedView<2>;

dim3 blocks_for(std::int64_t threads) { return dim3(unsigned((threads + kThreads - 1) / kThreads)); }

// Calls f with a value of the unit of `size` bytes.
template <class F>
void dispatch_size(int size, F&& f) {
  switch (size) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    case 8: return f(std::uint64_t{});
    default: fail<InternalError>("internal error: elements of ", size, " bytes");
  }
}

// Sees runs of neighbours as fewer, larger units; returns their size.
int widen_units(View& view, int size, const std::byte* to, const std::byte* from) {
  if (view.strides[0][0] != 1 || view.strides[1][0] != 1) return size;
  std::uint64_t all = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  all |= std::uint64_t(view.extents[0] * size);
  for (int dim = 1; dim < view.num_dims; ++dim) {
    for (const auto& strides : view.strides) all |= std::uint64_t(std::abs(strides[dim] * size));
  }
  int unit = 16;
  while (unit > size && all % std::uint64_t(unit) != 0) unit /= 2;
  const std::int64_t factor = unit / size;
  view.extents[0] /= factor;
  for (int dim = 1; dim < view.num_dims; ++dim) view.strides[0][dim] /= factor, view.strides[1][dim] /= factor;
  return unit;
}

// The dim along which `from` has neighbours where `to` has them along dim 0; 0 where there is none worth a tile.
int transposed_dim(const View& view) {
  constexpr std::int64_t kLeast = 8;
  if (view.strides[0][0] != 1 || view.extents[0] < kLeast) return 0;
  for (int dim = 1; dim < view.num_dims; ++dim) {
    if (view.strides[1][dim] == 1 && view.extents[dim] >= kLeast) return dim;
  }
  return 0;
}

template <class U>
void copy_part(const Cuda& device, const View& view, U* to, const U* from) {
  launch("copy", copy_elements<U>, {.grid = blocks_for(view.numel()), .block = kThreads}, device, StridedIndex<2>(view), to,
         from);
}

template <class U>
void transpose_part(const Cuda& device, const View& view, int dim, U* to, const U* from) {
  const auto tiles = [&](int of) { return (view.extents[of] + kTile - 1) / kTile; };
  Transposition shape{.columns = std::uint32_t(view.extents[0]),
                      .rows = std::uint32_t(view.extents[dim]),
                      .to_row = std::int32_t(view.strides[0][dim]),
                      .from_column = std::int32_t(view.strides[1][0]),
                      .tiles_of_columns = Divisor(tiles(0)),
                      .tiles_of_rows = Divisor(tiles(dim)),
                      .batch = {}};
  View batch;
  batch.num_dims = 0;
  for (int other = 1; other < view.num_dims; ++other) {
    if (other == dim) continue;
    batch.extents[batch.num_dims] = view.extents[other];
    for (int n = 0; n < 2; ++n) batch.strides[n][batch.num_dims] = view.strides[n][other];
    ++batch.num_dims;
  }
  batch.num_dims = std::max(batch.num_dims, 1);
  shape.batch = StridedIndex<2>(batch);
  const dim3 grid(unsigned(tiles(0) * tiles(dim) * batch.numel()));
  launch("copy (transposed)", copy_transposed<U>, {.grid = grid, .block = kTile * kTileRows}, device, shape, to, from);
}

void copy_run(const Cuda& device, std::int64_t numel, int size, std::byte* to, const std::byte* from) {
  if (to == from) return;
  const std::int64_t bytes = numel * size, distance = std::abs(to - from);
  const auto stream = static_cast<cudaStream_t>(device.stream);
  if (distance >= bytes)
    return check_cuda(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToDevice, stream), "copy");
  dispatch_size(size, [&](auto unit) {
    using U = decltype(unit);
    launch("copy (overlapping)", move_run<U>, {.block = 1024}, device, reinterpret_cast<U*>(to), reinterpret_cast<const U*>(from),
           numel);
  });
}

// The low `size` bytes, as often as they fit.
std::uint64_t repeated(std::uint64_t pattern, int size) {
  for (int bits = 8 * size; bits < 64; bits *= 2) pattern = (pattern & ((std::uint64_t{1} << bits) - 1)) | (pattern << bits);
  return pattern;
}

}  // namespace

void copy_strided(const Cuda& device, const Shape& shape, int size, std::byte* to, const Strides& to_strides,
                  const std::byte* from, const Strides& from_strides) {
  View view(shape, {to_strides, from_strides});
  if (view.numel() == 0) return;
  if (view.is_one_run()) return copy_run(device, view.numel(), size, to, from);
  const int unit_size = widen_units(view, size, to, from);
  const auto copy_in = [&](auto unit) {
    using U = decltype(unit);
    for_each_part(view, [&](const View& part, const std::array<std::int64_t, 2>& starts) {
      U* target = reinterpret_cast<U*>(to) + starts[0];
      const U* source = reinterpret_cast<const U*>(from) + starts[1];
      if constexpr (sizeof(U) < sizeof(Unit16)) {
        if (const int dim = transposed_dim(part)) return transpose_part(device, part, dim, target, source);
      }
      copy_part(device, part, target, source);
    });
  };
  if (unit_size == sizeof(Unit16))
    copy_in(Unit16{});
  else
    dispatch_size(unit_size, copy_in);
}

void fill_strided(const Cuda& device, const Shape& shape, int size, std::byte* to, const Strides& strides,
                  std::uint64_t pattern) {
  const MergedView<1> view(shape, {strides});
  const std::int64_t numel = view.numel();
  if (numel == 0) return;
  const Unit16 whole{repeated(pattern, size), repeated(pattern, size)};
  if (view.is_one_run() && whole.low == repeated(pattern, 1)) {
    const auto stream = static_cast<cudaStream_t>(device.stream);
    return check_cuda(cudaMemsetAsync(to, int(pattern & 0xff), std::size_t(numel * size), stream), "fill");
  }
  dispatch_size(size, [&](auto unit) {
    using U = decltype(unit);
    U* first = reinterpret_cast<U*>(to);
    const U value = U(whole.low);
    if constexpr (sizeof(U) > 1) {  // every pattern of one byte is uniform
      if (view.is_one_run()) {
        const std::int64_t ahead = std::int64_t((16 - reinterpret_cast<std::uintptr_t>(to) % 16) % 16);
        const std::int64_t head = std::min(numel, ahead / size);
        const std::int64_t threads = std::max<std::int64_t>(numel * size / 16, 16);
        launch("fill", fill_run<U>, {.grid = blocks_for(threads), .block = kThreads}, device, first, numel, head, value, whole);
        return;
      }
    }
    for_each_part(view, [&](const MergedView<1>& part, const std::array<std::int64_t, 1>& starts) {
      launch("fill", fill_elements<U>, {.grid = blocks_for(part.numel()), .block = kThreads}, device, StridedIndex<1>(part),
             first + starts[0], value);
    });
  });
}

}  // namespace cuda

}  // namespace refrain
