#include <refrain/kernels/common/strided_copy.h>

#include <cstring>

namespace refrain {

namespace {

constexpr std::int64_t kGrain = 16384, kTile = 32;

// to[r·to_row + c] = from[r + c·from_column] for one tile, r and c below the given counts.
template <class T>
void copy_tile(T* __restrict to, std::int64_t to_row, const T* __restrict from, std::int64_t from_column, std::int64_t rows,
               std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) to[r * to_row + c] = from[r + c * from_column];
  }
}

template <class T>
void copy(const Shape& shape, T* to, const Strides& to_strides, const T* from, const Strides& from_strides) {
  const StridedLoop<2> loop(shape, {to_strides, from_strides});
  const int inner = loop.num_dims() - 1;
  const std::int64_t to_step = loop.inner_stride(0), from_step = loop.inner_stride(1);

  // A dim of `from` that is contiguous in memory while the innermost one is not: a transposition.
  int other = -1;
  for (int i = 0; i < inner; ++i) {
    if (loop.stride(1, i) == 1) other = i;
  }
  if (to_step == 1 && from_step > 1 && other >= 0 && loop.extent(other) >= 8 && loop.extent(inner) >= 8) {
    // Loop over what is left (everything but the two dims) × tiles.
    std::int64_t outer = 1;
    for (int i = 0; i < inner; ++i) outer *= i == other ? 1 : loop.extent(i);
    const std::int64_t rows = loop.extent(other), columns = loop.extent(inner);
    const std::int64_t row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile;
    parallel_for(outer * row_tiles * column_tiles, kGrain / (kTile * kTile), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t column = i % column_tiles * kTile, row = i / column_tiles % row_tiles * kTile;
        std::int64_t rest = i / column_tiles / row_tiles, to_offset = 0, from_offset = 0;
        for (int k = inner - 1; k >= 0; --k) {
          if (k == other) continue;
          to_offset += rest % loop.extent(k) * loop.stride(0, k);
          from_offset += rest % loop.extent(k) * loop.stride(1, k);
          rest /= loop.extent(k);
        }
        copy_tile(to + to_offset + row * loop.stride(0, other) + column, loop.stride(0, other),
                  from + from_offset + row + column * from_step, from_step, std::min(kTile, rows - row), std::min(kTile, columns - column));
      }
    });
    return;
  }
  loop.parallel_rows(kGrain, [&](const std::array<std::int64_t, 2>& at, std::int64_t n) {
    T* target = to + at[0];
    const T* source = from + at[1];
    if (to_step == 1 && from_step == 1)
      std::memcpy(target, source, std::size_t(n) * sizeof(T));
    else {
      for (std::int64_t i = 0; i < n; ++i) target[i * to_step] = source[i * from_step];
    }
  });
}

}  // namespace

void copy_strided(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
                  const Strides& from_strides) {
  const auto as = [&](auto zero) {
    using T = decltype(zero);
    copy(shape, reinterpret_cast<T*>(to), to_strides, reinterpret_cast<const T*>(from), from_strides);
  };
  switch (size) {
    case 1: return as(std::uint8_t{});
    case 2: return as(std::uint16_t{});
    case 4: return as(std::uint32_t{});
    case 8: return as(std::uint64_t{});
    default: fail<InternalError>("copy of elements of ", size, " bytes");
  }
}

}  // namespace refrain
