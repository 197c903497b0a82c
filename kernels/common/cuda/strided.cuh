// One kernel over strided operands for every elementwise function: arithmetic in T (f32 or f64) on arrays of neighbours in
// registers, operands of T or of a 16-bit type S, rounded once as results are stored. Packs of 16 bytes where all operands have
// neighbours or repeat an element along the innermost dim and are aligned, single elements elsewhere: the same arithmetic.
#pragma once

#include <refrain/core/cuda/strided.cuh>
#include <refrain/kernels/common/cuda/types.cuh>
#include <refrain/kernels/common/strided.h>
#include <refrain/kernels/kernel.h>

#include <array>

namespace refrain::cuda {

// Calls f(arithmetic, storage) with values of the types for operands of these dtypes: f64 alone, or f32 and one 16-bit type.
template <class F>
void dispatch_mixed(std::initializer_list<DType> dtypes, F&& f) {
  bool has[4] = {};
  for (const DType dtype : dtypes) has[std::size_t(dtype) % 4] = true;
  if (has[std::size_t(DType::f64)]) return f(double{}, double{});
  if (has[std::size_t(DType::f16)]) return f(float{}, half{});
  if (has[std::size_t(DType::bf16)]) return f(float{}, bfloat{});
  f(float{}, float{});
}

// An operand as a kernel sees it.
struct MapOperand {
  void* address;
  bool is_wide;      // of T, else of S
  bool is_repeated;  // one element along the innermost dim
};

template <class T, class S>
__device__ __forceinline__ T loaded(S x) {
  if constexpr (std::is_same_v<T, S>)
    return x;
  else
    return T(widen(x));
}
template <class S, class T>
__device__ __forceinline__ S stored(T x) {
  if constexpr (std::is_same_v<T, S>)
    return x;
  else
    return narrow<S>(x);
}

// `kCount` values from `address` on, of which `count` exist: the others are 1. Packs are read where all exist and the address
// is a multiple of a pack's size.
template <class S, class T, int kCount>
__device__ __forceinline__ void load_values(const S* address, std::uint32_t count, T (&to)[kCount], bool is_packed = true) {
  if constexpr (kCount > 1) {
    constexpr int kBytes = int(sizeof(S)) * kCount > 16 ? 16 : int(sizeof(S)) * kCount, kEach = kBytes / int(sizeof(S));
    if (is_packed && count == kCount) {
#pragma unroll
      for (int first = 0; first < kCount; first += kEach) {
        const auto pack = load_pack<S, kBytes>(address + first);
#pragma unroll
        for (int i = 0; i < kEach; ++i) to[first + i] = loaded<T>(pack[i]);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = std::uint32_t(i) < count ? loaded<T>(address[i]) : T(1);
}

template <class S, class T, int kCount>
__device__ __forceinline__ void store_values(S* address, std::uint32_t count, const T (&from)[kCount], bool is_packed = true) {
  if constexpr (kCount > 1) {
    constexpr int kBytes = int(sizeof(S)) * kCount > 16 ? 16 : int(sizeof(S)) * kCount, kEach = kBytes / int(sizeof(S));
    if (is_packed && count == kCount) {
#pragma unroll
      for (int first = 0; first < kCount; first += kEach) {
        Pack<S, kBytes> pack;
#pragma unroll
        for (int i = 0; i < kEach; ++i) pack[i] = stored<S>(from[first + i]);
        store_pack(address + first, pack);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (std::uint32_t(i) < count) address[i] = stored<S>(from[i]);
  }
}

// The same of an operand that may repeat one element.
template <class S, class T, int kCount>
__device__ __forceinline__ void load_operand(const S* address, std::uint32_t count, bool is_repeated, T (&to)[kCount]) {
  if (!is_repeated) return load_values(address, count, to);
  const T value = loaded<T>(*address);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = value;
}

inline constexpr int kMapThreads = 256;

template <int N>
struct MapArguments {
  StridedIndex<N + 1> index;   // of packs: along the innermost dim they are counted, and steps are those of packs
  std::uint32_t inner;         // elements of the innermost dim
  MapOperand operands[N + 1];  // the output first
};

// f(inputs, output) for arrays T[N][kCount] and T[kCount].
template <class T, class S, int kCount, int N, class F>
__global__ __launch_bounds__(kMapThreads) void map_strided(MapArguments<N> k, F f) {
  const std::uint32_t i = blockIdx.x * kMapThreads + threadIdx.x;
  if (i >= k.index.numel) return;
  std::int32_t at[N + 1];
  const std::uint32_t first = k.index.offsets(i, at) * kCount, left = k.inner - first, count = left < kCount ? left : kCount;
  T in[N][kCount], out[kCount];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const MapOperand& from = k.operands[n + 1];
    if (std::is_same_v<T, S> || from.is_wide)
      load_operand(static_cast<const T*>(from.address) + at[n + 1], count, from.is_repeated, in[n]);
    else
      load_operand(static_cast<const S*>(from.address) + at[n + 1], count, from.is_repeated, in[n]);
  }
  f(in, out);
  if (std::is_same_v<T, S> || k.operands[0].is_wide)
    store_values(static_cast<T*>(k.operands[0].address) + at[0], count, out);
  else
    store_values(static_cast<S*>(k.operands[0].address) + at[0], count, out);
}

// Whether packs of kCount neighbours may be read and written. `addresses` and `sizes` are those of the operands' elements.
template <int N>
bool takes_packs(const MergedView<N>& view, const std::array<const void*, N>& addresses, const std::array<int, N>& sizes,
                 int count) {
  for (int n = 0; n < N; ++n) {
    const bool is_repeated = n > 0 && view.strides[n][0] == 0;
    if (is_repeated) continue;
    if (view.strides[n][0] != 1 || !is_aligned(addresses[n], std::size_t(std::min(16, sizes[n] * count)))) return false;
    for (int dim = 1; dim < view.num_dims; ++dim) {
      if (view.strides[n][dim] % count != 0) return false;
    }
  }
  return view.extents[0] >= count;
}

// The view in packs along its innermost dim.
template <int N>
MergedView<N> view_of_packs(MergedView<N> view, int count) {
  view.extents[0] = ceil_div(view.extents[0], count);
  for (auto& strides : view.strides) strides[0] *= count;
  return view;
}

// Calls start(arguments, grid, count) for kernels in the manner of map_strided; count is an integral constant, kPack or 1.
// Operands have `sizes` bytes an element, those of T `wide_size`, and one shape; the output comes first.
template <int kPack, int N, class F>
void start_views(int wide_size, const Shape& shape, const std::array<Strides, N + 1>& strides,
                 const std::array<const std::byte*, N + 1>& addresses, const std::array<int, N + 1>& sizes, F&& start) {
  for_each_part(MergedView<N + 1>(shape, strides), [&](const MergedView<N + 1>& view, const auto& starts) {
    MapArguments<N> arguments{};
    std::array<const void*, N + 1> firsts{};
    for (int n = 0; n <= N; ++n) {
      const std::byte* first = addresses[n] + starts[n] * sizes[n];
      firsts[n] = first;
      arguments.operands[n] = {const_cast<std::byte*>(first), sizes[n] == wide_size, n > 0 && view.strides[n][0] == 0};
    }
    arguments.inner = std::uint32_t(view.extents[0]);
    const auto start_with = [&](auto count) {
      arguments.index = StridedIndex<N + 1>(view_of_packs<N + 1>(view, decltype(count)::value));
      start(arguments, dim3(unsigned(ceil_div(arguments.index.numel, kMapThreads))), count);
    };
    if constexpr (kPack > 1) {
      if (takes_packs<N + 1>(view, firsts, sizes, kPack)) return start_with(std::integral_constant<int, kPack>{});
    }
    start_with(std::integral_constant<int, 1>{});
  });
}

// The same for arguments that broadcast to the output's shape. Outputs without bytes are left out.
template <int kPack, int N, class F>
void start_map(int wide_size, const Out& out, const std::array<const In*, N>& in, F&& start) {
  if (!out.has_bytes() || out.numel() == 0) return;
  std::array<Strides, N + 1> strides{out.strides()};
  std::array<const std::byte*, N + 1> addresses{out.address()};
  std::array<int, N + 1> sizes{int(size_of(out.dtype()))};
  for (int n = 0; n < N; ++n) {
    strides[n + 1] = broadcast_strides(in[n]->shape(), in[n]->strides(), out.shape());
    addresses[n + 1] = in[n]->address();
    sizes[n + 1] = int(size_of(in[n]->dtype()));
  }
  start_views<kPack, N>(wide_size, out.shape(), strides, addresses, sizes, start);
}

// out = f(in…), see elementwise.h for what operands may be.
template <class T, class S, int N, class F>
void map(std::string_view name, const Cuda& device, const Out& out, const std::array<const In*, N>& in, const F& f) {
  // f64 is for checks of gradients: one element at a time keeps its code small.
  constexpr int kPack = sizeof(T) == 8 ? 1 : 16 / int(sizeof(S));
  start_map<kPack, N>(sizeof(T), out, in, [&](const MapArguments<N>& arguments, dim3 grid, auto count) {
    launch(name, map_strided<T, S, decltype(count)::value, N, F>, {.grid = grid, .block = kMapThreads}, device, arguments, f);
  });
}

}  // namespace refrain::cuda
