// Patch embedding: patches are laid out as rows [C, P, Q], a chunk of rows at a time, and multiplied like a linear
// layer. Every pixel belongs to exactly one patch, so nothing is laid out twice.
#include <refrain/core/parallel.h>
#include <refrain/kernels/convolution/convolution.h>

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

template <class T>
void lay_out(const PatchGeometry& g, std::int64_t first, std::int64_t count, const T* x, T* patches) {
  for_stretches(g, first, count, x, patches, [&](const T* image, T* patch) { std::copy_n(image, g.Q, patch); });
}

std::int64_t ld(std::int64_t width) { return std::max<std::int64_t>(1, width); }

template <class T>
void forward(const PatchEmbeddingForward& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.weight.shape());
  T* patches = k.scratch.data<T>();
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(g, row, rows, k.x.data<T>(), patches);
    gemm(GemmArgs<T>{.m = rows, .n = g.D, .k = g.window(), .a = {patches, ld(g.window())}, .b = {k.weight.data<T>(), ld(g.window()), true},
                     .c = k.out.data<T>() + row * g.D, .ldc = g.D, .bias = k.bias.data<T>(), .engine = k.engine});
  });
}

template <class T>
void backward_input(const PatchEmbeddingBackwardInput& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.out.shape(), k.weight.shape());
  T* patches = k.scratch.data<T>();
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    gemm(GemmArgs<T>{.m = rows, .n = g.window(), .k = g.D, .a = {k.grad_out.data<T>() + row * g.D, ld(g.D)},
                     .b = {k.weight.data<T>(), ld(g.window())}, .c = patches, .ldc = g.window(), .engine = k.engine});
    for_stretches(g, row, rows, k.out.data<T>(), static_cast<const T*>(patches), [&](T* image, const T* patch) { std::copy_n(patch, g.Q, image); });
  });
}

template <class T>
void backward_weight(const PatchEmbeddingBackwardWeight& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.out.shape());
  T* patches = k.scratch.data<T>();
  T* chunk_bias = patches + g.chunk_rows() * g.window();
  T* sums = chunk_bias + g.D;
  T* grad_bias = k.grad_bias.data<T>();
  std::fill_n(k.out.data<T>(), k.out.numel(), T(0));
  if (grad_bias) std::fill_n(grad_bias, g.D, T(0));
  for_chunks(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(g, row, rows, k.x.data<T>(), patches);
    gemm(GemmArgs<T>{.m = g.D, .n = g.window(), .k = rows, .a = {k.grad_out.data<T>() + row * g.D, ld(g.D), true}, .b = {patches, ld(g.window())},
                     .c = k.out.data<T>(), .ldc = g.window(), .beta = T(1), .a_row_sums = grad_bias ? chunk_bias : nullptr,
                     .split_k = true, .scratch = sums, .engine = k.engine});
    for (std::int64_t d = 0; grad_bias && d < g.D; ++d) grad_bias[d] += chunk_bias[d];
  });
}

}  // namespace

std::int64_t PatchGeometry::chunk_rows() const {
  const std::int64_t fitting = kChunkElements / std::max<std::int64_t>(1, window()) / kRowUnit * kRowUnit;
  return std::min(rows(), std::max(kRowUnit, fitting));
}

std::int64_t PatchGeometry::scratch_size() const { return chunk_rows() * window(); }

std::int64_t PatchGeometry::weight_scratch_size() const { return scratch_size() + D + gemm_scratch_size(D, window(), chunk_rows(), DType::f32); }

void run(Cpu, const PatchEmbeddingForward& k) {
  if (k.out.has_bytes()) dispatch_wide(k.out.dtype(), k.name, [&]<class T>(T) { forward<T>(k); });
}
void run(Cpu, const PatchEmbeddingBackwardInput& k) {
  if (k.out.has_bytes()) dispatch_wide(k.out.dtype(), k.name, [&]<class T>(T) { backward_input<T>(k); });
}
void run(Cpu, const PatchEmbeddingBackwardWeight& k) {
  if (k.out.has_bytes()) dispatch_wide(k.out.dtype(), k.name, [&]<class T>(T) { backward_weight<T>(k); });
}

}  // namespace refrain
