// Cross-entropy, forward and backward. Forward reads the logits once: every thread carries the maximum and the sum of its part
// of a row, rescaled when the maximum rises, and the parts are merged in a fixed tree (Milakov, Gimelshein: "Online normalizer
// calculation for softmax", 2018). S is the logits' type; arithmetic is in T = accumulator<S>.
#include <refrain/kernels/common/cuda/fault.cuh>
#include <refrain/kernels/loss/loss.cuh>

#include <algorithm>

namespace refrain {

namespace loss_kernels {

template <class S> inline constexpr int kPack = 16 / int(sizeof(S));

// Blocks of backward; each counts all targets for a mean, so that there must not be too many.
inline constexpr std::int64_t kMostBackwardBlocks = 1024;

// maximum, sum(exp(x - maximum)) and sum(x) of a part of a row.
template <class T>
struct Part {
  T maximum, sum;
  double total;
  __device__ __forceinline__ void merge(const Part& other) {
    const T highest = Larger{}(maximum, other.maximum);
    const T mine = maximum == highest ? sum : sum * exp_nonpositive(maximum - highest);
    const T theirs = other.maximum == highest ? other.sum : other.sum * exp_nonpositive(other.maximum - highest);
    maximum = highest;
    sum = mine + theirs;
    total += other.total;
  }
};

// Merges the parts of a row's threads in all of them. `slots` as for block_reduce.
template <int kThreads, class T>
__device__ __forceinline__ Part<T> merge_row(Part<T> part, Part<T> (&slots)[kThreads / kWarp], bool wants_total) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Part<T> other;
    other.maximum = __shfl_xor_sync(kAllLanes, part.maximum, distance);
    other.sum = __shfl_xor_sync(kAllLanes, part.sum, distance);
    other.total = wants_total ? __shfl_xor_sync(kAllLanes, part.total, distance) : 0.0;
    part.merge(other);
  }
  if constexpr (kThreads > kWarp) {
    if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = part;
    __syncthreads();
    part = slots[0];
    for (int warp = 1; warp < kThreads / kWarp; ++warp) part.merge(slots[warp]);
  }
  return part;
}

template <class S>
struct CrossEntropyRows {
  using T = accumulator<S>;
  const S* logits;
  const std::int64_t* targets;
  std::int64_t rows, ignore_index, first_row;
  int classes;
  bool has_packs;
  T smoothing, scale;
  T *losses, *statistics;  // either may be null
  CudaFault* fault;
};

template <class S, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows) cross_entropy_rows(CrossEntropyRows<S> a) {
  using T = accumulator<S>;
  constexpr int K = kPack<S>;
  REFRAIN_SHARED(Part<T>, slots, [kThreads / kWarp]);
  const std::int64_t r = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (r >= a.rows) return;
  const bool is_first = threadIdx.x % kThreads == 0;
  const std::int64_t target = a.targets[r];
  const bool is_bad = target != a.ignore_index && (target < 0 || target >= a.classes);
  if (is_bad && is_first) report(a.fault, CudaFault::cross_entropy_target, r + a.first_row, target, a.classes);
  if (is_bad || target == a.ignore_index) {
    if (is_first) {
      if (a.losses) a.losses[r] = T(0);
      if (a.statistics) a.statistics[2 * r] = a.statistics[2 * r + 1] = T(0);
    }
    return;
  }
  const RowLayout<kThreads, K> layout(a.classes, a.has_packs);
  const S* x = a.logits + r * a.classes;
  const S lowest = narrow<S>(minus_infinity<T>());
  const bool wants_total = a.smoothing != T(0);
  T maximum = minus_infinity<T>(), sum = 0, total = 0;
#pragma unroll(sizeof(S) == 8 ? 1 : 2)
  for (int s = 0; layout.has_slot(s); ++s) {
    const Group<S, K> group = layout.load(x, s, lowest);
    T highest = maximum;
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const T value = widen(group[j]);
      highest = highest < value ? value : highest;
    }
    if (highest > maximum) {
      if (sum != T(0)) sum *= exp_nonpositive(maximum - highest);
      maximum = highest;
    }
    const T shift = maximum == minus_infinity<T>() ? T(0) : maximum;
#pragma unroll
    for (int j = 0; j < K; ++j) sum += exp_nonpositive(T(widen(group[j])) - shift);
    if (wants_total) {
#pragma unroll
      for (int j = 0; j < K; ++j) total += layout.holds(s, j) ? T(widen(group[j])) : T(0);
    }
  }
  const Part<T> row = merge_row<kThreads>(Part<T>{maximum, sum, double(total)}, slots, wants_total);
  if (!is_first) return;
  // A row of -inf alone: its probabilities exp(x - 0 - inf) are zeros, never NaN.
  const bool is_empty = row.sum == T(0);
  const T top = is_empty ? T(0) : row.maximum, log_sum = is_empty ? -minus_infinity<T>() : logarithm(row.sum);
  if (a.statistics) {
    a.statistics[2 * r] = top;
    a.statistics[2 * r + 1] = log_sum;
  }
  if (!a.losses) return;
  T loss = log_sum;
  if (log_sum != -minus_infinity<T>()) {
    loss = log_sum + (top - T(widen(x[target])));
    if (wants_total) {
      const double mean = row.total / double(a.classes);
      loss = (T(1) - a.smoothing) * loss + a.smoothing * (log_sum + T(double(top) - mean));
    }
  }
  a.losses[r] = loss * a.scale;
}

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    reduce_losses(const T* losses, const std::int64_t* targets, T* out, std::int64_t rows, std::int64_t ignore_index,
                  Reduction reduction, double scale) {
  REFRAIN_SHARED(T, tile, [kSumTile]);
  REFRAIN_SHARED(unsigned long long, slots, [kSumThreads / kWarp]);
  double sum = sum_in_order(losses, rows, tile);
  if (reduction == Reduction::mean) {
    const std::int64_t kept = count_kept<kSumThreads>(targets, rows, ignore_index, slots);
    if (kept != 0) sum /= double(kept);
  }
  if (threadIdx.x == 0) *out = T(sum * scale);
}

template <class S>
struct CrossEntropyGradients {
  using T = accumulator<S>;
  const T* grad_out;
  const S* logits;  // may be grad_logits
  const std::int64_t* targets;
  const T* statistics;
  S* grad_logits;
  std::int64_t rows, ignore_index;
  int classes;
  bool has_packs;
  Reduction reduction;
  double scale;
  T smoothed, on_target;  // label_smoothing / V and 1 - label_smoothing
  CudaFault* fault;
};

template <class S, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows) cross_entropy_backward(CrossEntropyGradients<S> a) {
  using T = accumulator<S>;
  constexpr int K = kPack<S>;
  REFRAIN_SHARED(unsigned long long, slots, [kThreads * kRows / kWarp]);
  const double factor = gradient_factor<kThreads * kRows>(a.targets, a.rows, a.ignore_index, a.reduction, a.scale, slots);
  const RowLayout<kThreads, K> layout(a.classes, a.has_packs);
  for (std::int64_t r = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kThreads; r < a.rows;
       r += std::int64_t(gridDim.x) * kRows) {
    const std::int64_t target = a.targets[r];
    const bool is_bad = target != a.ignore_index && (target < 0 || target >= a.classes);
    if (is_bad && threadIdx.x % kThreads == 0) report(a.fault, CudaFault::cross_entropy_target, r, target, a.classes);
    const bool is_skipped = is_bad || target == a.ignore_index;
    const S* x = a.logits + r * a.classes;
    S* grad = a.grad_logits + r * a.classes;
    const T row_scale = T(double(a.grad_out[a.reduction == Reduction::none ? r : 0]) * factor);
    const T maximum = a.statistics[2 * r], log_sum = a.statistics[2 * r + 1];
    for (int s = 0; layout.has_slot(s); ++s) {
      Group<S, K> group;
      if (is_skipped) {
#pragma unroll
        for (int j = 0; j < K; ++j) group[j] = narrow<S>(0.0f);
      } else {
        group = layout.load(x, s);
#pragma unroll
        for (int j = 0; j < K; ++j) {
          T value = exp_nonpositive(T(widen(group[j])) - maximum - log_sum) - a.smoothed;
          // The target's own difference before scaling, so that a probability near 1 loses nothing.
          if (layout.index(s, j) == target) value -= a.on_target;
          group[j] = narrow<S>(value * row_scale);
        }
      }
      layout.store(grad, s, group);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    spread_loss_gradient(const T* grad_out, const std::int64_t* targets, T* out, std::int64_t rows, std::int64_t ignore_index,
                         Reduction reduction, double scale) {
  REFRAIN_SHARED(unsigned long long, slots, [kSumThreads / kWarp]);
  const double factor = gradient_factor<kSumThreads>(targets, rows, ignore_index, reduction, scale, slots);
  const T value = T(double(*grad_out) * factor);
  for (std::int64_t i = std::int64_t(blockIdx.x) * kSumThreads + threadIdx.x; i < rows;
       i += std::int64_t(gridDim.x) * kSumThreads)
    out[i] = value;
}

template <class T, class K>
void launch_reduction(Cuda device, const K& k, const T* losses) {
  launch(k.name, reduce_losses<T>, {.grid = dim3(1), .block = dim3(kSumThreads)}, device, losses,
         data_of<std::int64_t>(k.targets), data_of<T>(k.out), k.targets.numel(), k.ignore_index, k.reduction, k.scale);
}

}  // namespace loss_kernels

void run(Cuda device, const CrossEntropyForward& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes() && !k.statistics.has_bytes()) return;
  cuda::dispatch_floating(k.logits.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    using T = loss_kernels::accumulator<S>;
    const bool is_summed = k.reduction != Reduction::none;
    CrossEntropyRows<S> a{};
    a.logits = data_of<S>(k.logits);
    a.targets = data_of<std::int64_t>(k.targets);
    a.rows = k.targets.numel();
    a.ignore_index = k.ignore_index;
    a.first_row = k.first_row;
    a.classes = checked_width(k.logits.dim(-1), k.name);
    a.has_packs = is_aligned(a.logits, 16);
    a.smoothing = T(k.label_smoothing);
    a.scale = is_summed ? T(1) : T(k.scale);
    a.losses = !k.out.has_bytes() ? nullptr : is_summed ? data_of<T>(k.row_losses) : data_of<T>(k.out);
    a.statistics = data_of<T>(k.statistics);
    a.fault = device.fault;
    choose_threads<T>(a.classes, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == kWarp ? 4 : 1;
      launch(k.name, cross_entropy_rows<S, kThreads, kRows>,
             {.grid = dim3(unsigned(ceil_div(a.rows, kRows))), .block = dim3(kThreads * kRows)}, device, a);
    });
    if (is_summed && k.out.has_bytes()) launch_reduction<T>(device, k, a.losses);
  });
}

void run(Cuda device, const CrossEntropyBackward& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  cuda::dispatch_floating(k.logits.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    using T = loss_kernels::accumulator<S>;
    CrossEntropyGradients<S> a{};
    a.grad_out = data_of<T>(k.grad_out);
    a.logits = data_of<S>(k.logits);
    a.targets = data_of<std::int64_t>(k.targets);
    a.statistics = data_of<T>(k.statistics);
    a.grad_logits = data_of<S>(k.out);
    a.rows = k.targets.numel();
    a.ignore_index = k.ignore_index;
    a.classes = checked_width(k.logits.dim(-1), k.name);
    a.has_packs = is_aligned(a.logits, 16) && is_aligned(a.grad_logits, 16);
    a.reduction = k.reduction;
    a.scale = k.scale;
    a.smoothed = T(k.label_smoothing / double(a.classes));
    a.on_target = T(1.0 - k.label_smoothing);
    a.fault = device.fault;
    choose_threads<T>(a.classes, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == kWarp ? 4 : 1;
      const std::int64_t blocks = std::min(ceil_div(a.rows, kRows), kMostBackwardBlocks);
      launch(k.name, cross_entropy_backward<S, kThreads, kRows>,
             {.grid = dim3(unsigned(blocks)), .block = dim3(kThreads * kRows)}, device, a);
    });
  });
}

void run(Cuda device, const ReduceLosses& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  if (k.out.dtype() == DType::f64) launch_reduction<double>(device, k, data_of<double>(k.row_losses));
  else launch_reduction<float>(device, k, data_of<float>(k.row_losses));
}

void run(Cuda device, const SpreadLossGradient& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  const auto spread = [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = k.targets.numel(), blocks = std::min<std::int64_t>(ceil_div(rows, kSumThreads), 64);
    launch(k.name, spread_loss_gradient<T>, {.grid = dim3(unsigned(blocks)), .block = dim3(kSumThreads)}, device,
           data_of<T>(k.grad_out), data_of<std::int64_t>(k.targets), data_of<T>(k.out), rows, k.ignore_index, k.reduction,
           k.scale);
  };
  k.out.dtype() == DType::f64 ? spread(double{}) : spread(float{});
}

}  // namespace refrain
