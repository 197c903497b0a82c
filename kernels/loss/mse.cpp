// Mean squared error on the CPU, in pieces of fixed size whose sums are added in order.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/loss/loss.h>

#include <algorithm>

namespace refrain {

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::for_vectors;

constexpr std::int64_t kPiece = 16384;

// Calls f with values of x's and target's types: equal, or f32 and a 16-bit type.
template <class F>
void dispatch_pair(DType x, DType target, std::string_view op, F&& f) {
  dispatch_floating(x, op, [&](auto x_zero) {
    if (x == target) return f(x_zero, x_zero);
    if constexpr (is_half<decltype(x_zero)>) return f(x_zero, float{});
    else return target == DType::f16 ? f(float{}, f16{}) : f(float{}, bf16{});
  });
}

template <class X, class Y, class T = accumulator_t<X>>
void forward(const MseForward& k) {
  const X* x = k.x.data<X>();
  const Y* target = k.target.data<Y>();
  T* out = k.out.data<T>();
  double* partials = k.partials.data<double>();
  const bool is_summed = k.reduction != Reduction::none;
  const std::int64_t numel = k.x.numel();
  parallel_for(numel, kPiece, [=](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<T> d;
    simd::Sums<decltype(d), 4> sums(d);
    for_vectors<4>(d, end - begin, [&](auto j, std::int64_t i, auto lanes) HWY_ATTR {
      const auto difference = hn::Sub(lanes.load(d, x + begin + i), lanes.load(d, target + begin + i));
      if (is_summed) sums.part[j] = hn::MulAdd(difference, difference, sums.part[j]);
      else lanes.store(hn::Mul(difference, difference), d, out + begin + i);
    });
    if (is_summed) partials[begin / kPiece] = double(sums.total(d));
  });
  if (!is_summed) return;
  double sum = 0;
  for (std::int64_t p = 0; p < MseForward::num_partials(numel); ++p) sum += partials[p];
  *out = T(k.reduction == Reduction::mean ? sum / double(std::max<std::int64_t>(1, numel)) : sum);
}

template <class X, class Y, class T = accumulator_t<X>>
void backward(const MseBackward& k) {
  const X* x = k.x.data<X>();
  const Y* target = k.target.data<Y>();
  const T* grad_out = k.grad_out.data<T>();
  X* out = k.out.data<X>();
  const bool is_summed = k.reduction != Reduction::none;
  const std::int64_t numel = k.x.numel();
  const double factor = k.reduction == Reduction::mean ? 2.0 / double(std::max<std::int64_t>(1, numel)) : 2.0;
  const T scale = is_summed ? T(double(*grad_out) * factor) : T(2);
  parallel_for(numel, kPiece, [=](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<T> d;
    const auto s = hn::Set(d, scale);
    for_vectors<2>(d, end - begin, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
      auto g = hn::Mul(s, hn::Sub(lanes.load(d, x + begin + i), lanes.load(d, target + begin + i)));
      if (!is_summed) g = hn::Mul(g, lanes.load(d, grad_out + begin + i));
      lanes.store(g, d, out + begin + i);
    });
  });
}

}  // namespace

std::int64_t MseForward::num_partials(std::int64_t numel) { return (numel + kPiece - 1) / kPiece; }

void run(Cpu, const MseForward& k) {
  if (!k.out.has_bytes()) return;
  dispatch_pair(k.x.dtype(), k.target.dtype(), k.name, [&](auto x, auto target) { forward<decltype(x), decltype(target)>(k); });
}

void run(Cpu, const MseBackward& k) {
  if (!k.out.has_bytes()) return;
  dispatch_pair(k.x.dtype(), k.target.dtype(), k.name, [&](auto x, auto target) { backward<decltype(x), decltype(target)>(k); });
}

}  // namespace refrain
