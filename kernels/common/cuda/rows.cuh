// Rows of a contiguous tensor, each spread over a warp or a block. Where an element of a row goes depends on the row's width
// alone: a row has the same bits wherever it stands and whatever its address.
#pragma once

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>

namespace refrain::cuda {

using math::exp_nonpositive;
using math::fused;
using math::logarithm;
using math::root;
template <class A> __device__ __forceinline__ A minus_infinity() { return -A(HUGE_VALF); }

// K neighbours or, in a row that cannot be cut into packs, K elements of one thread.
template <class T, int K>
struct Group {
  T values[K];
  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
};

// Bytes at a time in which packs of K elements are loaded and stored.
template <class T, int K> inline constexpr int kPackBytes = K * int(sizeof(T)) < 16 ? K * int(sizeof(T)) : 16;

// Elements of a row that a thread keeps in registers when there are so many threads to a row: 32 of 4 bytes in a warp.
template <class A, int kThreads> inline constexpr int kKept = (kThreads == kWarp ? 128 : 64) / int(sizeof(A));

// A row of `width` elements over kThreads threads. Slot s is the s-th run of kThreads · K elements: thread t has K neighbours of
// it where K divides the width, and else every kThreads-th of its elements, so that loads of single elements are coalesced.
template <int kThreads, int K>
class RowLayout {
 public:
  static constexpr int kSpan = kThreads * K;
  // has_packs: all addresses that will be given are multiples of kPackBytes.
  __device__ __forceinline__ RowLayout(int width, bool has_packs)
      : width_(width),
        loads_packs_(width % K == 0 && has_packs),
        first_(int(threadIdx.x % kThreads) * (width % K == 0 ? K : 1)),
        stride_(width % K == 0 ? 1 : kThreads) {}

  __device__ __forceinline__ bool has_slot(int slot) const { return slot * kSpan < width_; }
  __device__ __forceinline__ int index(int slot, int j) const { return first_ + slot * kSpan + j * stride_; }
  __device__ __forceinline__ bool holds(int slot, int j) const { return index(slot, j) < width_; }

  // `fill` stands for what is past the end.
  template <class T>
  __device__ __forceinline__ Group<T, K> load(const T* row, int slot, T fill = narrow<T>(0.0f)) const {
    Group<T, K> group;
    constexpr int kBytes = kPackBytes<T, K>, kEach = kBytes / int(sizeof(T));
    if (loads_packs_ && holds(slot, 0)) {
#pragma unroll
      for (int part = 0; part < K; part += kEach) {
        const auto pack = load_pack<T, kBytes>(row + index(slot, part));
#pragma unroll
        for (int j = 0; j < kEach; ++j) group[part + j] = pack[j];
      }
      return group;
    }
#pragma unroll
    for (int j = 0; j < K; ++j) group[j] = holds(slot, j) ? row[index(slot, j)] : fill;
    return group;
  }

  template <class T>
  __device__ __forceinline__ void store(T* row, int slot, const Group<T, K>& group) const {
    constexpr int kBytes = kPackBytes<T, K>, kEach = kBytes / int(sizeof(T));
    if (loads_packs_) {
      if (!holds(slot, 0)) return;
#pragma unroll
      for (int part = 0; part < K; part += kEach) {
        Pack<T, kBytes> pack;
#pragma unroll
        for (int j = 0; j < kEach; ++j) pack[j] = group[part + j];
        store_pack(row + index(slot, part), pack);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < K; ++j) {
      if (holds(slot, j)) row[index(slot, j)] = group[j];
    }
  }

  // The same an element at a time, for rows that may be at any address.
  template <class T>
  __device__ __forceinline__ Group<T, K> load_single(const T* row, int slot) const {
    Group<T, K> group;
#pragma unroll
    for (int j = 0; j < K; ++j) group[j] = holds(slot, j) ? row[index(slot, j)] : narrow<T>(0.0f);
    return group;
  }
  template <class T>
  __device__ __forceinline__ void store_single(T* row, int slot, const Group<T, K>& group) const {
#pragma unroll
    for (int j = 0; j < K; ++j) {
      if (holds(slot, j)) row[index(slot, j)] = group[j];
    }
  }

  // Calls f(slot) for every slot past the first kSlots.
  template <int kSlots, class F>
  __device__ __forceinline__ void for_rest(F&& f) const {
    for (int slot = kSlots; has_slot(slot); ++slot) f(slot);
  }

 private:
  int width_;
  bool loads_packs_;
  int first_, stride_;
};

// The sum or maximum over a row's threads, in all of them. `slots`: as for block_reduce; a row of one warp does without.
template <int kThreads, class Op, class A>
__device__ __forceinline__ A row_reduce(A value, A* slots, Op op = {}) {
  if constexpr (kThreads == kWarp) return warp_reduce(value, op);
  else return block_reduce<kThreads>(value, slots, op);
}

// Rows are int wide: a slot's end must not overflow.
inline int checked_width(std::int64_t width, std::string_view kernel) {
  check(width <= (std::int64_t(1) << 30), kernel, ": CUDA takes rows of at most 2^30 elements, got ", width);
  return int(width);
}

// Calls f(std::integral_constant<int, kThreads>) with what a row of this width should have: a warp that keeps it in registers,
// or a block of 256, which keeps 4096 elements of 4 bytes and reads again what a wider row has more.
template <class A, class F>
void choose_threads(std::int64_t width, F&& f) {
  if (width <= kWarp * kKept<A, kWarp>) f(std::integral_constant<int, kWarp>{});
  else f(std::integral_constant<int, 256>{});
}

}  // namespace refrain::cuda
