// Counts: rows whose largest logit is at their target, and targets that are not ignored. Integers: any order gives the same.
#include <refrain/kernels/common/cuda/fault.cuh>
#include <refrain/kernels/loss/loss.cuh>

#include <climits>

namespace refrain {

namespace loss_kernels {

inline constexpr int kCountThreads = 256;

// The largest value and the first index it stands at. NaN is never larger, as in std::max_element.
template <class T>
struct Largest {
  T value;
  int at;
  __device__ __forceinline__ void take(T other, int other_at) {
    if (other > value || (other == value && other_at < at)) {
      value = other;
      at = other_at;
    }
  }
};

__global__ void __launch_bounds__(kWarp) set_to_zero(std::int64_t* out) {
  if (threadIdx.x == 0) *out = 0;
}

// A warp a row; a block adds what its warps found.
template <class S>
__global__ void __launch_bounds__(kCountThreads)
    count_correct(const S* logits, const std::int64_t* targets, std::int64_t rows, int classes, bool has_packs,
                  std::int64_t ignore_index, unsigned long long* correct, CudaFault* fault) {
  using T = accumulator<S>;
  constexpr int K = 16 / int(sizeof(S)), kRows = kCountThreads / kWarp;
  REFRAIN_SHARED(int, found, [kRows]);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const std::int64_t r = std::int64_t(blockIdx.x) * kRows + warp;
  const std::int64_t target = r < rows ? targets[r] : ignore_index;
  const bool is_bad = target != ignore_index && (target < 0 || target >= classes);
  if (is_bad && lane == 0) report(fault, CudaFault::cross_entropy_target, r, target, classes);
  bool is_correct = false;
  if (target != ignore_index && !is_bad) {
    const S* x = logits + r * classes;
    const S lowest = narrow<S>(minus_infinity<T>());
    const RowLayout<kWarp, K> layout(classes, has_packs);
    Largest<T> best{minus_infinity<T>(), INT_MAX};
    for (int s = 0; layout.has_slot(s); ++s) {
      const Group<S, K> group = layout.load(x, s, lowest);  // what is past the end has the higher index
#pragma unroll
      for (int j = 0; j < K; ++j) best.take(widen(group[j]), layout.index(s, j));
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const T value = __shfl_xor_sync(kAllLanes, best.value, distance);
      const int at = __shfl_xor_sync(kAllLanes, best.at, distance);
      best.take(value, at);
    }
    const T first = widen(x[0]);
    is_correct = (first != first ? 0 : best.at) == int(target);  // nothing is larger than a NaN that comes first
  }
  if (lane == 0) found[warp] = is_correct;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) sum += found[i];
  if (sum != 0) atomicAdd(correct, static_cast<unsigned long long>(sum));
}

__global__ void __launch_bounds__(kCountThreads)
    count_targets(const std::int64_t* targets, std::int64_t count, std::int64_t ignore_index, std::int64_t* out) {
  REFRAIN_SHARED(unsigned long long, slots, [kCountThreads / kWarp]);
  const std::int64_t kept = count_kept<kCountThreads>(targets, count, ignore_index, slots);
  if (threadIdx.x == 0) *out = kept;
}

}  // namespace loss_kernels

void run(Cuda device, const CountCorrect& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  cuda::dispatch_floating(k.logits.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    const std::int64_t rows = k.targets.numel();
    std::int64_t* out = data_of<std::int64_t>(k.out);
    const S* logits = data_of<S>(k.logits);
    launch(k.name, set_to_zero, {.grid = dim3(1), .block = dim3(kWarp)}, device, out);
    launch(k.name, count_correct<S>,
           {.grid = dim3(unsigned(ceil_div(rows, kCountThreads / kWarp))), .block = dim3(kCountThreads)}, device, logits,
           data_of<std::int64_t>(k.targets), rows, checked_width(k.logits.dim(-1), k.name), is_aligned(logits, 16),
           k.ignore_index, reinterpret_cast<unsigned long long*>(out), device.fault);
  });
}

void run(Cuda device, const CountTargets& k) {
  using namespace loss_kernels;
  if (!k.out.has_bytes()) return;
  launch(k.name, count_targets, {.grid = dim3(1), .block = dim3(kCountThreads)}, device, data_of<std::int64_t>(k.targets),
         k.targets.numel(), k.ignore_index, data_of<std::int64_t>(k.out));
}

}  // namespace refrain
