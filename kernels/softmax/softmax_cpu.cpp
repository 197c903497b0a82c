// Softmax on the CPU. Over the last dim a line is a row; over another dim neighbouring lines lie side by side, one a
// lane, so no copy is made.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_math.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/softmax/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace refrain {

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::for_vectors;
using simd::Sums;

constexpr std::int64_t kElementsPerPiece = 8192;

template <class T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// [outer, length, inner]: the line (o, i) has its elements `inner` apart.
struct Layout {
  std::int64_t outer = 1, length, inner = 1;
  Layout(const Shape& shape, int dim) : length(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
  std::int64_t grain(std::int64_t lines_at_once) const {
    return std::max<std::int64_t>(1, kElementsPerPiece / std::max<std::int64_t>(1, length * lines_at_once));
  }
  // Calls f(offset) for every row.
  template <class F>
  void for_rows(F&& f) const {
    parallel_for(outer, grain(1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) f(r * length);
    });
  }
  // Calls f(offset, lanes) for every group of neighbouring lines.
  template <class D, class F>
  void for_columns(D d, F&& f) const {
    const std::int64_t step = std::int64_t(hn::Lanes(d)), groups = (inner + step - 1) / step;
    parallel_for(outer * groups, grain(step), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t first = p % groups * step, offset = p / groups * length * inner + first;
        if (first + step <= inner) f(offset, simd::AllLanes{});
        else f(offset, simd::FirstLanes{std::size_t(inner - first)});
      }
    });
  }
};

// Exponentials wait for their sum in the output, or, since a 16-bit output would round them, in a buffer. Those of a row
// too long for it are computed twice, which gives the same bits.
template <bool is_log, class S>
void forward_row(const S* x, S* out, std::int64_t length) {
  using T = accumulator_t<S>;
  constexpr std::int64_t kBuffer = is_half<S> && !is_log ? 2048 : 1;
  HWY_ALIGN T buffer[kBuffer];
  T* kept = length <= kBuffer ? buffer : nullptr;
  if constexpr (!is_half<S>) kept = out;
  const hn::ScalableTag<T> d;
  const auto lowest = hn::Set(d, kMinusInfinity<T>);
  auto highest = lowest;
  for_vectors(d, length, [&](std::int64_t i, auto lanes) HWY_ATTR { highest = hn::Max(highest, lanes.select(d, lanes.load(d, x + i), lowest)); });
  T maximum = hn::GetLane(hn::MaxOfLanes(d, highest));
  // Nothing to subtract from a row of -inf: exp gives zeros.
  if (maximum == kMinusInfinity<T>) maximum = 0;
  const auto shift = hn::Set(d, maximum);
  Sums<decltype(d), 2> sums(d);
  for_vectors<2>(d, length, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
    const auto e = simd::exp_nonpositive(d, hn::Sub(lanes.load(d, x + i), shift));
    if (!is_log && kept != nullptr) lanes.store(e, d, kept + i);
    sums.part[k] = hn::Add(sums.part[k], lanes.keep(d, e));
  });
  const T sum = sums.total(d);
  if constexpr (is_log) {
    const auto log_sum = hn::Set(d, sum == 0 ? T(0) : std::log(sum));
    for_vectors(d, length, [&](std::int64_t i, auto lanes) HWY_ATTR {
      lanes.store(hn::Sub(hn::Sub(lanes.load(d, x + i), shift), log_sum), d, out + i);
    });
  } else {
    const auto scale = hn::Set(d, sum == 0 ? T(0) : T(1) / sum);
    for_vectors(d, length, [&](std::int64_t i, auto lanes) HWY_ATTR {
      const auto e = kept != nullptr ? lanes.load(d, kept + i) : simd::exp_nonpositive(d, hn::Sub(lanes.load(d, x + i), shift));
      lanes.store(hn::Mul(e, scale), d, out + i);
    });
  }
}

template <bool is_log, class S, class Lanes>
void forward_columns(const S* x, S* out, std::int64_t length, std::int64_t inner, Lanes lanes) {
  using T = accumulator_t<S>;
  const hn::ScalableTag<T> d;
  const auto zero = hn::Zero(d), lowest = hn::Set(d, kMinusInfinity<T>);
  auto shift = lowest;
  for (std::int64_t j = 0; j < length; ++j) shift = hn::Max(shift, lanes.load(d, x + j * inner));
  shift = hn::IfThenElse(hn::Eq(shift, lowest), zero, shift);
  auto sum = zero;
  for (std::int64_t j = 0; j < length; ++j) {
    const auto e = simd::exp_nonpositive(d, hn::Sub(lanes.load(d, x + j * inner), shift));
    if constexpr (!is_log && !is_half<S>) lanes.store(e, d, out + j * inner);
    sum = hn::Add(sum, e);
  }
  const auto is_empty = hn::Eq(sum, zero);
  if constexpr (is_log) {
    const auto log_sum = hn::IfThenElse(is_empty, zero, simd::log(d, sum));
    for (std::int64_t j = 0; j < length; ++j) {
      lanes.store(hn::Sub(hn::Sub(lanes.load(d, x + j * inner), shift), log_sum), d, out + j * inner);
    }
  } else {
    const auto scale = hn::IfThenElse(is_empty, zero, hn::Div(hn::Set(d, T(1)), sum));
    for (std::int64_t j = 0; j < length; ++j) {
      const auto e = [&]() HWY_ATTR {
        if constexpr (is_half<S>) return simd::exp_nonpositive(d, hn::Sub(lanes.load(d, x + j * inner), shift));
        else return lanes.load(d, out + j * inner);
      }();
      lanes.store(hn::Mul(e, scale), d, out + j * inner);
    }
  }
}

template <bool is_log, class S>
void forward(const SoftmaxForward& k) {
  const Layout layout(k.x.shape(), k.dim);
  const S* x = k.x.data<S>();
  S* out = k.out.data<S>();
  if (layout.inner == 1) {
    layout.for_rows([&](std::int64_t at) { forward_row<is_log>(x + at, out + at, layout.length); });
  } else {
    layout.for_columns(hn::ScalableTag<accumulator_t<S>>{},
                       [&](std::int64_t at, auto lanes) { forward_columns<is_log>(x + at, out + at, layout.length, layout.inner, lanes); });
  }
}

template <bool is_log, class D, class V>
HWY_INLINE V gradient(D d, V y, V g, V sum) {
  if constexpr (is_log) return hn::NegMulAdd(simd::exp_nonpositive(d, y), sum, g);
  else return hn::Mul(y, hn::Sub(g, sum));
}

template <bool is_log, class S>
void backward_row(const S* y, const S* grad_out, S* grad_x, std::int64_t length) {
  const hn::ScalableTag<accumulator_t<S>> d;
  Sums<decltype(d), 4> sums(d);
  for_vectors<4>(d, length, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
    const auto g = lanes.load(d, grad_out + i);
    if constexpr (is_log) sums.part[k] = hn::Add(sums.part[k], g);
    else sums.part[k] = hn::MulAdd(g, lanes.load(d, y + i), sums.part[k]);
  });
  const auto sum = hn::Set(d, sums.total(d));
  for_vectors(d, length, [&](std::int64_t i, auto lanes) HWY_ATTR {
    lanes.store(gradient<is_log>(d, lanes.load(d, y + i), lanes.load(d, grad_out + i), sum), d, grad_x + i);
  });
}

template <bool is_log, class S, class Lanes>
void backward_columns(const S* y, const S* grad_out, S* grad_x, std::int64_t length, std::int64_t inner, Lanes lanes) {
  const hn::ScalableTag<accumulator_t<S>> d;
  auto sum = hn::Zero(d);
  for (std::int64_t j = 0; j < length; ++j) {
    const auto g = lanes.load(d, grad_out + j * inner);
    if constexpr (is_log) sum = hn::Add(sum, g);
    else sum = hn::MulAdd(g, lanes.load(d, y + j * inner), sum);
  }
  for (std::int64_t j = 0; j < length; ++j) {
    lanes.store(gradient<is_log>(d, lanes.load(d, y + j * inner), lanes.load(d, grad_out + j * inner), sum), d, grad_x + j * inner);
  }
}

template <bool is_log, class S>
void backward(const SoftmaxBackward& k) {
  const Layout layout(k.y.shape(), k.dim);
  const S *y = k.y.data<S>(), *grad_out = k.grad_out.data<S>();
  S* grad_x = k.out.data<S>();
  if (layout.inner == 1) {
    layout.for_rows([&](std::int64_t at) { backward_row<is_log>(y + at, grad_out + at, grad_x + at, layout.length); });
  } else {
    layout.for_columns(hn::ScalableTag<accumulator_t<S>>{}, [&](std::int64_t at, auto lanes) {
      backward_columns<is_log>(y + at, grad_out + at, grad_x + at, layout.length, layout.inner, lanes);
    });
  }
}

}  // namespace

void run(Cpu, const SoftmaxForward& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  dispatch_floating(k.x.dtype(), k.name, [&](auto t) { k.is_log ? forward<true, decltype(t)>(k) : forward<false, decltype(t)>(k); });
}

void run(Cpu, const SoftmaxBackward& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  dispatch_floating(k.y.dtype(), k.name, [&](auto t) { k.is_log ? backward<true, decltype(t)>(k) : backward<false, decltype(t)>(k); });
}

}  // namespace refrain
