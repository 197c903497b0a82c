// Mean squared error. The sum is made in pieces of fixed size, a block each, whose f64 sums are added in order. X and Y are the
// types of x and target: equal, or f32 and a 16-bit type; arithmetic is in T = accumulator<X>.
#include <refrain/kernels/loss/loss.cuh>

#include <algorithm>

namespace refrain {

namespace loss_kernels {

inline constexpr std::int64_t kPiece = 16384;  // as MseForward::num_partials() has it
inline constexpr int kMseThreads = 256, kMseSlots = 4, kMseSpan = kMseThreads * kMseSlots;

template <class X, class Y> inline constexpr int kMsePack = 16 / int(std::max(sizeof(X), sizeof(Y)));

template <class X, class Y>
struct MseElements {
  using T = accumulator<X>;
  const X* x;
  const Y* target;
  std::int64_t numel;
  bool has_packs;
};

// K neighbours, at once where they are before `end` and addresses allow it; zeros past the end.
template <class E, int K>
__device__ __forceinline__ Group<E, K> load_elements(const E* address, std::int64_t at, std::int64_t end, bool has_packs) {
  Group<E, K> group;
  if (has_packs && at + K <= end) {
    constexpr int kBytes = kPackBytes<E, K>;
    const auto pack = load_pack<E, kBytes>(address + at);
#pragma unroll
    for (int j = 0; j < K; ++j) group[j] = pack[j];
    return group;
  }
#pragma unroll
  for (int j = 0; j < K; ++j) group[j] = at + j < end ? address[at + j] : narrow<E>(0.0f);
  return group;
}

template <class X, class Y>
__global__ void __launch_bounds__(kMseThreads) mse_pieces(MseElements<X, Y> a, double* partials) {
  using T = accumulator<X>;
  constexpr int K = kMsePack<X, Y>;
  REFRAIN_SHARED(T, slots, [kMseThreads / kWarp]);
  const std::int64_t begin = blockIdx.x * kPiece, end = begin + kPiece < a.numel ? begin + kPiece : a.numel;
  T sum = 0;
#pragma unroll 4
  for (std::int64_t at = begin + threadIdx.x * K; at < end; at += kMseThreads * K) {
    const auto x = load_elements<X, K>(a.x, at, end, a.has_packs);
    const auto target = load_elements<Y, K>(a.target, at, end, a.has_packs);
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const T difference = T(widen(x[j])) - T(widen(target[j]));  // 0 past the end
      sum = fused(difference, difference, sum);
    }
  }
  sum = block_reduce<kMseThreads, Add>(sum, slots);
  if (threadIdx.x == 0) partials[blockIdx.x] = double(sum);
}

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    mse_add_pieces(const double* partials, std::int64_t pieces, double divisor, T* out) {
  REFRAIN_SHARED(double, tile, [kSumTile]);
  const double sum = sum_in_order(partials, pieces, tile);
  if (threadIdx.x == 0) *out = T(sum / divisor);
}

template <class X, class Y>
__global__ void __launch_bounds__(kMseThreads) mse_squares(MseElements<X, Y> a, accumulator<X>* out) {
  using T = accumulator<X>;
  for (int s = 0; s < kMseSlots; ++s) {
    const std::int64_t i = std::int64_t(blockIdx.x) * kMseSpan + s * kMseThreads + threadIdx.x;
    if (i >= a.numel) return;
    const T difference = T(widen(a.x[i])) - T(widen(a.target[i]));
    out[i] = difference * difference;
  }
}

// grad_x = 2 · (x - target) · grad_out / (numel for a mean).
template <class X, class Y>
__global__ void __launch_bounds__(kMseThreads)
    mse_backward(MseElements<X, Y> a, const accumulator<X>* grad_out, X* grad_x, bool is_summed, double factor) {
  using T = accumulator<X>;
  constexpr int K = kMsePack<X, Y>;
  const T scale = is_summed ? T(double(*grad_out) * factor) : T(2);
  const std::int64_t at = (std::int64_t(blockIdx.x) * kMseThreads + threadIdx.x) * K;
  if (at >= a.numel) return;
  const auto x = load_elements<X, K>(a.x, at, a.numel, a.has_packs);
  const auto target = load_elements<Y, K>(a.target, at, a.numel, a.has_packs);
  Pack<X, kPackBytes<X, K>> grad;
#pragma unroll
  for (int j = 0; j < K; ++j) {
    T g = scale * (T(widen(x[j])) - T(widen(target[j])));
    if (!is_summed) g *= at + j < a.numel ? grad_out[at + j] : T(0);
    grad[j] = narrow<X>(g);
  }
  if (a.has_packs && at + K <= a.numel) return store_pack(grad_x + at, grad);
#pragma unroll
  for (int j = 0; j < K; ++j) {
    if (at + j < a.numel) grad_x[at + j] = grad[j];
  }
}

// Calls f(X{}, Y{}): equal types, or f32 and a 16-bit type.
template <class F>
void dispatch_pair(DType x, DType target, std::string_view op, F&& f) {
  cuda::dispatch_floating(x, op, [&](auto x_zero) {
    if (x == target) return f(x_zero, x_zero);
    if constexpr (sizeof(x_zero) == 2) return f(x_zero, float{});
    else if constexpr (std::is_same_v<decltype(x_zero), float>)
      return target == DType::f16 ? f(float{}, half{}) : f(float{}, bfloat{});
    else fail(op, ": no CUDA kernel for x ", x, " and target ", target);
  });
}

template <class X, class Y, class K>
MseElements<X, Y> elements_of(const K& k) {
  constexpr int kPack = kMsePack<X, Y>;
  const X* x = data_of<X>(k.x);
  const Y* target = data_of<Y>(k.target);
  return {x, target, k.x.numel(), is_aligned(x, kPackBytes<X, kPack>) && is_aligned(target, kPackBytes<Y, kPack>)};
}

}  // namespace loss_kernels

void run(Cuda device, const MseForward& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  dispatch_pair(k.x.dtype(), k.target.dtype(), k.name, [&](auto x_zero, auto target_zero) {
    using X = decltype(x_zero);
    using Y = decltype(target_zero);
    using T = loss_kernels::accumulator<X>;
    const auto a = elements_of<X, Y>(k);
    if (k.reduction == Reduction::none) {
      return launch(k.name, mse_squares<X, Y>, {.grid = dim3(unsigned(ceil_div(a.numel, kMseSpan))), .block = dim3(kMseThreads)},
                    device, a, data_of<T>(k.out));
    }
    const std::int64_t pieces = ceil_div(a.numel, kPiece);
    invariant(pieces == MseForward::num_partials(a.numel), "mse_loss: pieces differ from the scratch's");
    double* partials = data_of<double>(k.partials);
    launch(k.name, mse_pieces<X, Y>, {.grid = dim3(unsigned(pieces)), .block = dim3(kMseThreads)}, device, a, partials);
    const double divisor = k.reduction == Reduction::mean ? double(std::max<std::int64_t>(1, a.numel)) : 1.0;
    launch(k.name, mse_add_pieces<T>, {.grid = dim3(1), .block = dim3(kSumThreads)}, device, partials, pieces, divisor,
           data_of<T>(k.out));
  });
}

void run(Cuda device, const MseBackward& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  dispatch_pair(k.x.dtype(), k.target.dtype(), k.name, [&](auto x_zero, auto target_zero) {
    using X = decltype(x_zero);
    using Y = decltype(target_zero);
    using T = loss_kernels::accumulator<X>;
    auto a = elements_of<X, Y>(k);
    X* grad_x = data_of<X>(k.out);
    a.has_packs = a.has_packs && is_aligned(grad_x, kPackBytes<X, kMsePack<X, Y>>);
    const double factor = k.reduction == Reduction::mean ? 2.0 / double(std::max<std::int64_t>(1, a.numel)) : 2.0;
    launch(k.name, mse_backward<X, Y>,
           {.grid = dim3(unsigned(ceil_div(a.numel, kMseThreads * kMsePack<X, Y>))), .block = dim3(kMseThreads)}, device, a,
           data_of<T>(k.grad_out), grad_x, k.reduction != Reduction::none, factor);
  });
}

}  // namespace refrain
