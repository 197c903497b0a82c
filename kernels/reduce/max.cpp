// Maximum along a dim on the CPU.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/reduce/reduce.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace refrain {

namespace {

namespace hn = simd::hn;

constexpr std::int64_t kGrain = 16384;

// x seen as [outer, extent, inner] around the dim.
struct Around {
  std::int64_t outer = 1, extent, inner = 1;
  Around(const Shape& shape, int dim) : extent(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
};

// The largest of n >= 1 contiguous values, or a NaN among them.
template <class X, class T = accumulator_t<X>>
T max_of(const X* x, std::int64_t n) {
  const simd::Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  if (n < lanes) {
    T best = T(x[0]);
    for (std::int64_t i = 1; i < n && !std::isnan(best); ++i) best = T(x[i]) > best || std::isnan(T(x[i])) ? T(x[i]) : best;
    return best;
  }
  // The last vector may overlap its neighbour: a maximum does not mind.
  auto best = simd::load(d, x);
  auto has_nan = hn::IsNaN(best);
  for (std::int64_t i = lanes; i < n; i += lanes) {
    const auto v = simd::load(d, x + std::min(i, n - lanes));
    has_nan = hn::Or(has_nan, hn::IsNaN(v));
    best = hn::Max(best, v);
  }
  if (!hn::AllFalse(d, has_nan)) return std::numeric_limits<T>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

template <class T>
bool is_same_value(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

template <class X>
void run_max(const Max& k) {
  using T = accumulator_t<X>;
  const Around around(k.x.shape(), k.dim);
  const X* x = k.x.data<X>();
  // A replay may want the indices alone.
  X* out = k.out.has_bytes() ? k.out.data<X>() : nullptr;
  std::int64_t* indices = k.indices.has_bytes() ? k.indices.data<std::int64_t>() : nullptr;
  const std::int64_t per_piece = std::max<std::int64_t>(1, kGrain / around.extent);
  parallel_for(around.outer * around.inner, per_piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const X* line = x + i / around.inner * around.extent * around.inner + i % around.inner;
      std::int64_t at = 0;
      if (around.inner == 1) {
        const T best = max_of(line, around.extent);
        while (!is_same_value(T(line[at]), best)) ++at;
      } else {
        T best = T(line[0]);
        for (std::int64_t j = 1; j < around.extent && !std::isnan(best); ++j) {
          const T value = T(line[j * around.inner]);
          if (value > best || std::isnan(value)) best = value, at = j;
        }
      }
      if (out) out[i] = line[at * around.inner];
      if (indices) indices[i] = at;
    }
  });
}

}  // namespace

void run(Cpu, const Max& k) {
  if ((!k.out.has_bytes() && !k.indices.has_bytes()) || k.out.numel() == 0) return;
  dispatch_floating(k.x.dtype(), k.name, [&](auto zero) { run_max<decltype(zero)>(k); });
}

void run(Cpu, const MaxBackward& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  dispatch_floating(k.out.dtype(), k.name, [&](auto zero) {
    using T = decltype(zero);
    const Around around(k.out.shape(), k.dim);
    const T* grad_out = k.grad_out.data<T>();
    const std::int64_t* indices = k.indices.data<std::int64_t>();
    T* out = k.out.data<T>();
    const std::int64_t slab = around.extent * around.inner;
    parallel_for(around.outer, std::max<std::int64_t>(1, kGrain / slab), [&](std::int64_t begin, std::int64_t end) {
      std::fill(out + begin * slab, out + end * slab, T{});
      for (std::int64_t o = begin; o < end; ++o) {
        for (std::int64_t c = 0; c < around.inner; ++c) {
          const std::int64_t i = o * around.inner + c;
          out[o * slab + indices[i] * around.inner + c] = grad_out[i];
        }
      }
    });
  });
}

}  // namespace refrain
