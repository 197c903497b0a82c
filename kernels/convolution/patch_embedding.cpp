// Patch embedding: patches are laid out as rows [C, P, Q], a chunk of rows at a time, and multiplied like a linear
// layer. Every pixel belongs to exactly one patch, so nothing is laid out twice. Pixels become the products' type as they
// are laid out.
#include <refrain/core/parallel.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/convolution/rounded.h>
#include <refrain/kernels/matmul/product_dtypes.h>

#include <algorithm>

namespace refrain {

namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;
constexpr std::int64_t kRowUnit = 192;  // as the tiles of gemm()
constexpr std::int64_t kPieceElements = 16384;

template <class F>
void for_chunks(const PatchGeometry& g, F&& f) {
  const std::int64_t step = std::max<std::int64_t>(1, g.chunk_rows());
  for (std::int64_t row = 0; row < g.rows(); row += step) f(row, std::min(step, g.rows() - row));
}

// Calls f(pointer into the image, pointer into the patch) for each stretch of Q pixels of rows first … first + count.
template <class Image, class Patch, class F>
void for_stretches(const PatchGeometry& g, std::int64_t first, std::int64_t count, Image* x, Patch* patches, F&& f) {
  const std::int64_t per_row = g.W / g.Q, window = g.window();
  parallel_for(count, std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, window)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t b = (first + r) / g.patches(), patch = (first + r) % g.patches();
      Image* corner = x + b * g.C * g.H * g.W + patch / per_row * g.P * g.W + patch % per_row * g.Q;
      for (std::int64_t i = 0; i < g.C * g.P; ++i) f(corner + (i / g.P * g.H + i % g.P) * g.W, patches + r * window + i * g.Q);
    }
  });
}

template <class S>
void lay_out(std::string_view kernel, const PatchGeometry& g, std::int64_t first, std::int64_t count, const In& x, S* patches) {
  dispatch_floating(x.dtype(), kernel, [&]<class X>(X) {
    for_stretches(g, first, count, x.data<X>(), patches, [&](const X* image, S* patch) { convert_stretch(image, g.Q, patch); });
  });
}

std::int64_t ld(std::int64_t width) { return std::max<std::int64_t>(1, width); }

template <class T>
void forward(const PatchEmbeddingForward& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.weight.shape());
  T* patches = k.scratch.data<T>();
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(k.name, g, row, rows, k.x, patches);
    gemm(GemmArgs<T>{.m = rows, .n = g.D, .k = g.window(), .a = {patches, ld(g.window())}, .b = {k.weight.data<T>(), ld(g.window()), true},
                     .c = k.out.data<T>() + row * g.D, .ldc = g.D, .bias = bias_of<T>(k.bias), .engine = k.engine});
  });
}

template <class S, class X>
void backward_input(const PatchEmbeddingBackwardInput& k) {
  using A = accumulator_t<S>;
  const PatchGeometry g = PatchGeometry::of(k.name, k.out.shape(), k.weight.shape());
  A* patches = k.scratch.data<A>();
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    gemm(GemmArgs<S, A>{.m = rows, .n = g.window(), .k = g.D, .a = {k.grad_out.data<S>() + row * g.D, ld(g.D)},
                        .b = {k.weight.data<S>(), ld(g.window())}, .c = patches, .ldc = g.window(), .engine = k.engine});
    for_stretches(g, row, rows, k.out.data<X>(), static_cast<const A*>(patches), [&](X* image, const A* patch) { convert_stretch(patch, g.Q, image); });
  });
}

// Gradients are summed up over the chunks in the sums' type: in `sums` where they are 16-bit.
template <class S, class C>
void backward_weight(const PatchEmbeddingBackwardWeight& k) {
  using A = accumulator_t<S>;
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.out.shape());
  S* patches = k.scratch.data<S>();
  A* chunk_bias = k.sums.data<A>();
  A* sums = chunk_bias + g.D;
  const bool wants_bias = k.grad_bias.has_bytes();
  A* total = nullptr;
  A* bias = nullptr;
  if constexpr (is_half<C>) {
    total = sums;
    bias = total + k.out.numel();
    sums = bias + g.D;
  } else {
    total = k.out.data<C>();
    bias = k.grad_bias.data<C>();
  }
  std::fill_n(total, k.out.numel(), A(0));
  if (wants_bias) std::fill_n(bias, g.D, A(0));
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(k.name, g, row, rows, k.x, patches);
    gemm(GemmArgs<S, A>{.m = g.D, .n = g.window(), .k = rows, .a = {k.grad_out.data<S>() + row * g.D, ld(g.D), true}, .b = {patches, ld(g.window())},
                        .c = total, .ldc = g.window(), .beta = A(1), .a_row_sums = wants_bias ? chunk_bias : nullptr,
                        .split_k = true, .scratch = sums, .engine = k.engine});
    for (std::int64_t d = 0; wants_bias && d < g.D; ++d) bias[d] += chunk_bias[d];
  });
  if constexpr (is_half<C>) {
    round_to(total, k.out.numel(), k.out.data<C>());
    if (wants_bias) round_to(bias, g.D, k.grad_bias.data<C>());
  }
}

}  // namespace

std::int64_t PatchGeometry::chunk_rows() const {
  const std::int64_t fitting = kChunkElements / std::max<std::int64_t>(1, window()) / kRowUnit * kRowUnit;
  return std::min(rows(), std::max(kRowUnit, fitting));
}

std::int64_t PatchGeometry::scratch_size() const { return chunk_rows() * window(); }

std::int64_t PatchGeometry::weight_sums_size(DType out) const {
  return D + gemm_scratch_size(D, window(), chunk_rows(), DType::f32) + (is_16_bit(out) ? D * window() + D : 0);
}

void run(Cpu, const PatchEmbeddingForward& k) {
  if (k.out.has_bytes()) dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) { forward<T>(k); });
}
void run(Cpu, const PatchEmbeddingBackwardInput& k) {
  if (!k.out.has_bytes()) return;
  dispatch_floating(k.grad_out.dtype(), k.name, [&]<class S>(S) {
    dispatch_floating(k.out.dtype(), k.name, [&]<class X>(X) { backward_input<S, X>(k); });
  });
}
void run(Cpu, const PatchEmbeddingBackwardWeight& k) {
  if (k.out.has_bytes()) dispatch_product(k.grad_out.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) { backward_weight<S, C>(k); });
}

}  // namespace refrain
