// Cross-entropy on the CPU. Forward reads the logits once from memory: a row's maximum and sum are carried from block to
// block, rescaled when the maximum rises (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018).
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_math.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/loss/loss.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace refrain {

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::for_vectors;
using simd::Sums;

constexpr std::int64_t kBlock = 2048;  // logits that stay in the first-level cache between the two looks at them
constexpr std::int64_t kChunk = 512;   // 16-bit logits that are widened at once
constexpr std::int64_t kElementsPerPiece = 16384;

std::int64_t rows_per_piece(std::int64_t classes) { return std::max<std::int64_t>(1, kElementsPerPiece / classes); }

template <class K>
void check_targets(const K& k, std::int64_t first_row = 0) {
  const std::int64_t* targets = k.targets.template data<std::int64_t>();
  const std::int64_t classes = k.logits.dim(-1);
  for (std::int64_t r = 0; r < k.targets.numel(); ++r) {
    check((targets[r] >= 0 && targets[r] < classes) || targets[r] == k.ignore_index, K::name, ": target of row ", first_row + r, " must be 0 … ", classes - 1,
          " (V = ", classes, ") or ignore_index ", k.ignore_index, ", got ", targets[r]);
  }
}

std::int64_t count_kept(const In& targets, std::int64_t ignore_index) {
  const std::int64_t* values = targets.data<std::int64_t>();
  return targets.numel() - std::count(values, values + targets.numel(), ignore_index);
}

template <class T>
struct RowStatistics {
  T maximum, log_sum;  // log(sum(exp(x - maximum)))
  double mean;         // of the logits; only with label smoothing
};

template <class S, class T = accumulator_t<S>>
T block_maximum(const S* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto a = lowest, b = lowest;
  for_vectors<2>(d, n, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
    auto& highest = k == 0 ? a : b;
    highest = hn::Max(highest, lanes.select(d, lanes.load(d, x + i), lowest));
  });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
}

template <class S, class T = accumulator_t<S>>
RowStatistics<T> row_statistics(const S* x, std::int64_t classes, bool wants_mean) {
  const hn::ScalableTag<T> d;
  const T minus_infinity = -std::numeric_limits<T>::infinity();
  T maximum = minus_infinity, sum = 0;
  double total = 0;
  for (std::int64_t begin = 0; begin < classes; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, classes - begin);
    const S* block = x + begin;
    const T highest = std::max(maximum, block_maximum(block, n));
    if (highest > maximum) {
      if (sum != 0) sum *= std::exp(maximum - highest);
      maximum = highest;
    }
    const auto shift = hn::Set(d, maximum == minus_infinity ? T(0) : maximum);
    Sums<decltype(d), 2> exps(d), values(d);
    for_vectors<2>(d, n, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
      const auto v = lanes.load(d, block + i);
      exps.part[k] = hn::Add(exps.part[k], lanes.keep(d, simd::exp_nonpositive(d, hn::Sub(v, shift))));
      if (wants_mean) values.part[k] = hn::Add(values.part[k], v);
    });
    sum += exps.total(d);
    if (wants_mean) total += double(values.total(d));
  }
  // A row of -inf alone: its probabilities exp(x - 0 - inf) are zeros, never NaN.
  if (sum == 0) return {T(0), std::numeric_limits<T>::infinity(), 0};
  return {maximum, std::log(sum), total / double(classes)};
}

// The sum or mean of the rows' losses, in their order.
template <class T, class K>
T reduced(const T* losses, const K& k) {
  double sum = 0;
  for (std::int64_t r = 0; r < k.targets.numel(); ++r) sum += double(losses[r]);
  if (k.reduction == Reduction::mean) {
    const std::int64_t counted = count_kept(k.targets, k.ignore_index);
    if (counted != 0) sum /= double(counted);
  }
  return T(sum * k.scale);
}

// What the gradient of a sum or mean is multiplied by for each row.
template <class K>
double gradient_factor(const K& k) {
  return k.reduction == Reduction::mean ? k.scale / double(std::max<std::int64_t>(1, count_kept(k.targets, k.ignore_index))) : k.scale;
}

template <class S, class T = accumulator_t<S>>
void forward(const CrossEntropyForward& k) {
  const std::int64_t classes = k.logits.dim(-1), rows = k.targets.numel();
  const S* logits = k.logits.data<S>();
  const std::int64_t* targets = k.targets.data<std::int64_t>();
  const bool is_summed = k.reduction != Reduction::none;
  T *statistics = k.statistics.data<T>(), *losses = is_summed ? k.row_losses.data<T>() : k.out.data<T>();
  if (!k.out.has_bytes()) losses = nullptr;
  const T smoothing = T(k.label_smoothing), scale = is_summed ? T(1) : T(k.scale);
  parallel_for(rows, rows_per_piece(classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const bool is_ignored = targets[r] == k.ignore_index;
      const S* x = logits + r * classes;
      const RowStatistics<T> row = is_ignored ? RowStatistics<T>{0, 0, 0} : row_statistics(x, classes, smoothing != 0);
      if (statistics) {
        statistics[2 * r] = row.maximum;
        statistics[2 * r + 1] = row.log_sum;
      }
      if (!losses) continue;
      T loss = 0;
      if (!is_ignored && std::isinf(row.log_sum)) {
        loss = row.log_sum;
      } else if (!is_ignored) {
        loss = row.log_sum + (row.maximum - T(x[targets[r]]));
        if (smoothing != 0) loss = (T(1) - smoothing) * loss + smoothing * (row.log_sum + T(double(row.maximum) - row.mean));
      }
      losses[r] = loss * scale;
    }
  });
  if (is_summed && k.out.has_bytes()) *k.out.data<T>() = reduced(losses, k);
}

template <class S, class T = accumulator_t<S>>
void backward(const CrossEntropyBackward& k) {
  const std::int64_t classes = k.logits.dim(-1), rows = k.targets.numel();
  const S* logits = k.logits.data<S>();
  const T *statistics = k.statistics.data<T>(), *grad_out = k.grad_out.data<T>();
  const std::int64_t* targets = k.targets.data<std::int64_t>();
  S* grad = k.out.data<S>();
  const double factor = gradient_factor(k);
  const T smoothed = T(k.label_smoothing / double(classes)), on_target = T(1.0 - k.label_smoothing);
  parallel_for(rows, rows_per_piece(classes), [&](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<T> d;
    for (std::int64_t r = begin; r < end; ++r) {
      S* g = grad + r * classes;
      if (targets[r] == k.ignore_index) {
        std::fill_n(g, classes, S{});
        continue;
      }
      const S* x = logits + r * classes;
      const T row_scale = T(double(grad_out[k.reduction == Reduction::none ? r : 0]) * factor);
      const auto maximum = hn::Set(d, statistics[2 * r]), log_sum = hn::Set(d, statistics[2 * r + 1]);
      const auto scale = hn::Set(d, row_scale), floor = hn::Set(d, smoothed);
      const auto value = [&](auto v) HWY_ATTR {
        return hn::Sub(simd::exp_nonpositive(d, hn::Sub(hn::Sub(v, maximum), log_sum)), floor);
      };
      // The target's own difference before scaling, so that a probability near 1 loses nothing. Read first: g may be x.
      const std::int64_t t = targets[r];
      const S at_target = S((hn::GetLane(value(hn::Set(d, T(x[t])))) - on_target) * row_scale);
      for_vectors<2>(d, classes, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
        lanes.store(hn::Mul(value(lanes.load(d, x + i)), scale), d, g + i);
      });
      g[t] = at_target;
    }
  });
}

// The first of the largest values.
template <class S>
std::int64_t index_of_largest(const S* x, std::int64_t n) {
  if constexpr (is_half<S>) {
    float buffer[kChunk], best = float(x[0]);
    std::int64_t at = 0;
    for (std::int64_t begin = 0; begin < n; begin += kChunk) {
      const std::int64_t count = std::min(kChunk, n - begin);
      simd::copy(x + begin, buffer, count);
      for (std::int64_t i = 0; i < count; ++i) {
        if (best < buffer[i]) best = buffer[i], at = begin + i;
      }
    }
    return at;
  } else {
    return std::max_element(x, x + n) - x;
  }
}

template <class S>
std::int64_t correct_rows(const CountCorrect& k) {
  const std::int64_t classes = k.logits.dim(-1);
  const S* logits = k.logits.data<S>();
  const std::int64_t* targets = k.targets.data<std::int64_t>();
  std::atomic<std::int64_t> correct{0};  // a sum of integers: any order gives the same
  parallel_for(k.targets.numel(), rows_per_piece(classes), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t here = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      if (targets[r] == k.ignore_index) continue;
      here += index_of_largest(logits + r * classes, classes) == targets[r];
    }
    correct.fetch_add(here, std::memory_order_relaxed);
  });
  return correct.load();
}

}  // namespace

void run(Cpu, const CrossEntropyForward& k) {
  if (!k.out.has_bytes() && !k.statistics.has_bytes()) return;
  check_targets(k, k.first_row);
  dispatch_floating(k.logits.dtype(), k.name, [&](auto t) { forward<decltype(t)>(k); });
}

void run(Cpu, const CrossEntropyBackward& k) {
  if (!k.out.has_bytes()) return;
  check_targets(k);
  dispatch_floating(k.logits.dtype(), k.name, [&](auto t) { backward<decltype(t)>(k); });
}

void run(Cpu, const ReduceLosses& k) {
  if (!k.out.has_bytes()) return;
  if (k.out.dtype() == DType::f64) *k.out.data<double>() = reduced(k.row_losses.data<double>(), k);
  else *k.out.data<float>() = reduced(k.row_losses.data<float>(), k);
}

void run(Cpu, const SpreadLossGradient& k) {
  if (!k.out.has_bytes()) return;
  const double factor = gradient_factor(k);
  const auto spread = [&](auto grad_out, auto* out) { std::fill_n(out, k.out.numel(), decltype(grad_out)(double(grad_out) * factor)); };
  if (k.out.dtype() == DType::f64) spread(*k.grad_out.data<double>(), k.out.data<double>());
  else spread(*k.grad_out.data<float>(), k.out.data<float>());
}

void run(Cpu, const CountCorrect& k) {
  if (!k.out.has_bytes()) return;
  check_targets(k);
  dispatch_floating(k.logits.dtype(), k.name, [&](auto t) { *k.out.data<std::int64_t>() = correct_rows<decltype(t)>(k); });
}

void run(Cpu, const CountTargets& k) {
  if (k.out.has_bytes()) *k.out.data<std::int64_t>() = count_kept(k.targets, k.ignore_index);
}

}  // namespace refrain
