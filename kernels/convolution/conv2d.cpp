// Convolution through columns: row (c, p, q) of a chunk's columns holds, for each of its output positions, the pixel
// that weight (c, p, q) meets there.
#include <refrain/core/parallel.h>
#include <refrain/kernels/convolution/chunks.h>
#include <refrain/kernels/convolution/rounded.h>
#include <refrain/kernels/matmul/product_dtypes.h>

#include <algorithm>

namespace refrain {

namespace {

constexpr std::int64_t kPieceElements = 16384;

using Chunk = ConvolutionChunk;

struct Range {
  std::int64_t begin, end;
};

// Output columns whose window column q lies inside the image.
Range inside(const ConvolutionGeometry& g, std::int64_t q) {
  const std::int64_t shift = q - g.padding;  // pixel = x * stride + shift
  const std::int64_t begin = shift >= 0 ? 0 : (-shift + g.stride - 1) / g.stride;
  const std::int64_t end = shift >= g.W ? 0 : (g.W - 1 - shift) / g.stride + 1;
  return {std::min(begin, g.X()), std::clamp(end, std::min(begin, g.X()), g.X())};
}

// Calls f(row of columns, image of the chunk) in parallel.
template <class F>
void for_column_rows(const ConvolutionGeometry& g, const Chunk& chunk, F&& f) {
  const std::int64_t grain = std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, chunk.positions_per_image));
  parallel_for(g.window() * chunk.images, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i / chunk.images, i % chunk.images);
  });
}

template <class T>
void fill_columns(const ConvolutionGeometry& g, const Chunk& chunk, const T* x, T* columns) {
  for_column_rows(g, chunk, [&](std::int64_t row, std::int64_t image) {
    const std::int64_t c = row / (g.P * g.Q), p = row / g.Q % g.P, q = row % g.Q;
    const T* plane = x + ((chunk.image + image) * g.C + c) * g.H * g.W;
    T* to = columns + row * chunk.positions + image * chunk.positions_per_image;
    const Range range = inside(g, q);
    for (std::int64_t y = 0; y < chunk.rows; ++y, to += g.X()) {
      const std::int64_t h = (chunk.y + y) * g.stride + p - g.padding;
      if (h < 0 || h >= g.H) {
        std::fill_n(to, g.X(), T(0));
        continue;
      }
      const T* from = plane + h * g.W + q - g.padding;
      std::fill_n(to, range.begin, T(0));
      for (std::int64_t i = range.begin; i < range.end; ++i) to[i] = from[i * g.stride];
      std::fill_n(to + range.end, g.X() - range.end, T(0));
    }
  });
}

// The transpose of fill_columns: adds columns up into x, the chunk's images. A plane of x belongs to one thread, so sums have one order.
template <class T>
void add_columns(const ConvolutionGeometry& g, const Chunk& chunk, const T* columns, T* x) {
  const std::int64_t work = g.P * g.Q * chunk.positions_per_image;
  parallel_for(g.C * chunk.images, std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, work)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t image = i / g.C, c = i % g.C;
      T* plane = x + (image * g.C + c) * g.H * g.W;
      for (std::int64_t window = 0; window < g.P * g.Q; ++window) {
        const std::int64_t p = window / g.Q, q = window % g.Q;
        const T* from = columns + (c * g.P * g.Q + window) * chunk.positions + image * chunk.positions_per_image;
        const Range range = inside(g, q);
        for (std::int64_t y = 0; y < chunk.rows; ++y, from += g.X()) {
          const std::int64_t h = (chunk.y + y) * g.stride + p - g.padding;
          if (h < 0 || h >= g.H) continue;
          T* to = plane + h * g.W + q - g.padding;
          for (std::int64_t j = range.begin; j < range.end; ++j) to[j * g.stride] += from[j];
        }
      }
    }
  });
}

std::int64_t max_positions(const ConvolutionGeometry& g) { return ConvolutionChunkSize::of(g).positions(g); }

template <class T>
void forward(const Conv2dForward& k) {
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.weight.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X(), K = std::max<std::int64_t>(1, g.window());
  T* columns = k.scratch.data<T>();
  for_chunks(g, [&](const Chunk& chunk) {
    fill_columns(g, chunk, k.x.data<T>(), columns);
    gemm_batch<T>(chunk.images, [&](std::int64_t i) {
      return GemmArgs<T>{.m = g.O, .n = chunk.positions_per_image, .k = g.window(), .a = {k.weight.data<T>(), K},
                         .b = {columns + i * chunk.positions_per_image, chunk.positions},
                         .c = k.out.data<T>() + (chunk.image + i) * g.O * plane + chunk.y * g.X(), .ldc = plane,
                         .row_bias = bias_of<T>(k.bias), .engine = k.engine};
    });
  });
}

// Columns, and the images they are added up into when those are 16-bit, are of the sums' type.
template <class T>
void backward_input(const Conv2dBackwardInput& k) {
  using A = accumulator_t<T>;
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.out.shape(), k.weight.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X(), K = std::max<std::int64_t>(1, g.window()), image_size = g.C * g.H * g.W;
  A* columns = k.scratch.data<A>();
  T* out = k.out.data<T>();
  if constexpr (!is_half<T>) std::fill_n(out, k.out.numel(), T(0));
  for_chunks(g, [&](const Chunk& chunk) {
    gemm_batch<T, A>(chunk.images, [&](std::int64_t i) {
      return GemmArgs<T, A>{.m = g.window(), .n = chunk.positions_per_image, .k = g.O, .a = {k.weight.data<T>(), K, true},
                            .b = {k.grad_out.data<T>() + (chunk.image + i) * g.O * plane + chunk.y * g.X(), plane},
                            .c = columns + i * chunk.positions_per_image, .ldc = chunk.positions, .engine = k.engine};
    });
    if constexpr (is_half<T>) {
      A* images = columns + g.scratch_size();
      if (chunk.y == 0) std::fill_n(images, chunk.images * image_size, A(0));
      add_columns(g, chunk, columns, images);
      if (chunk.y + chunk.rows == g.Y()) round_to(images, chunk.images * image_size, out + chunk.image * image_size);
    } else {
      add_columns(g, chunk, columns, out + chunk.image * image_size);
    }
  });
}

// The weight's gradient is summed up over the chunks in the sums' type: in `sums` where `out` is 16-bit.
template <class S, class C>
void backward_weight(const Conv2dBackwardWeight& k) {
  using A = accumulator_t<S>;
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.out.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X(), positions = max_positions(g);
  S* columns = k.scratch.data<S>();
  S* grads = columns + g.window() * positions;  // [O, positions]: the chunk's images side by side
  A* sums = k.sums.data<A>();
  A* total = nullptr;
  if constexpr (is_half<C>) {
    total = sums;
    sums += k.out.numel();
  } else {
    total = k.out.data<C>();
  }
  std::fill_n(total, k.out.numel(), A(0));
  for_chunks(g, [&](const Chunk& chunk) {
    fill_columns(g, chunk, k.x.data<S>(), columns);
    const S* from = k.grad_out.data<S>() + chunk.image * g.O * plane + chunk.y * g.X();
    parallel_for(g.O * chunk.images, std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, chunk.positions_per_image)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t o = i / chunk.images, image = i % chunk.images;
                     std::copy_n(from + (image * g.O + o) * plane, chunk.positions_per_image,
                                 grads + o * chunk.positions + image * chunk.positions_per_image);
                   }
                 });
    gemm(GemmArgs<S, A>{.m = g.O, .n = g.window(), .k = chunk.positions, .a = {grads, chunk.positions}, .b = {columns, chunk.positions, true},
                        .c = total, .ldc = g.window(), .beta = A(1), .split_k = true, .scratch = sums, .engine = k.engine});
  });
  if constexpr (is_half<C>) round_to(total, k.out.numel(), k.out.data<C>());
}

template <class S, class C>
void backward_bias(const Conv2dBackwardBias& k) {
  using A = accumulator_t<S>;
  const std::int64_t B = k.grad_out.dim(0), O = k.grad_out.dim(1), plane = k.grad_out.dim(2) * k.grad_out.dim(3);
  parallel_for(O, std::max<std::int64_t>(1, kPieceElements / std::max<std::int64_t>(1, B * plane)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      A total = 0;
      for (std::int64_t b = 0; b < B; ++b) {
        const S* from = k.grad_out.data<S>() + (b * O + o) * plane;
        A lanes[16] = {};  // sums that run side by side
        for (std::int64_t i = 0; i < plane; ++i) lanes[i % 16] += A(from[i]);
        for (A lane : lanes) total += lane;
      }
      k.out.data<C>()[o] = C(total);
    }
  });
}

}  // namespace

std::int64_t ConvolutionGeometry::scratch_size() const { return window() * max_positions(*this); }

std::int64_t ConvolutionGeometry::weight_scratch_size() const {
  return (window() + O) * max_positions(*this);
}

std::int64_t ConvolutionGeometry::weight_sums_size(DType out) const {
  return gemm_scratch_size(O, window(), max_positions(*this), DType::f32) + (is_16_bit(out) ? O * window() : 0);
}

std::int64_t ConvolutionGeometry::input_scratch_size(DType out) const {
  return scratch_size() + (is_16_bit(out) ? ConvolutionChunkSize::of(*this).images * C * H * W : 0);
}

void run(Cpu, const Conv2dForward& k) {
  if (k.out.has_bytes()) dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) { forward<T>(k); });
}
void run(Cpu, const Conv2dBackwardInput& k) {
  if (k.out.has_bytes()) dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) { backward_input<T>(k); });
}
void run(Cpu, const Conv2dBackwardWeight& k) {
  if (k.out.has_bytes()) dispatch_product(k.x.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) { backward_weight<S, C>(k); });
}
void run(Cpu, const Conv2dBackwardBias& k) {
  if (k.out.has_bytes()) dispatch_product(k.grad_out.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) { backward_bias<S, C>(k); });
}

}  // namespace refrain
