// Convolution by cuDNN where that is chosen, else through columns, as on the CPU: chunks of columns are made, multiplied, added
// up, one after the other.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/convolution/chunks.h>
#include <refrain/kernels/convolution/cuda/convert_once.cuh>
#include <refrain/kernels/convolution/cuda/cudnn.h>
#include <refrain/kernels/matmul/cuda/product.h>

namespace refrain {

namespace convolution_kernels {

using cuda::accumulator, cuda::data_of, cuda::narrow, cuda::widen;

// Row (c, p, q) of the chunk's columns holds, for each output position, the pixel that weight (c, p, q) meets there.
template <class T>
__global__ void __launch_bounds__(256) fill_columns(const ConvolutionGeometry g, const ConvolutionChunk chunk, const T* x, T* columns, std::int64_t X) {
  const std::int64_t index = global_index();
  if (index >= g.C * g.P * g.Q * chunk.positions) return;
  const std::int64_t row = index / chunk.positions, position = index % chunk.positions;
  const std::int64_t c = row / (g.P * g.Q), p = row / g.Q % g.P, q = row % g.Q;
  const std::int64_t image = position / chunk.positions_per_image, place = position % chunk.positions_per_image;
  const std::int64_t h = (chunk.y + place / X) * g.stride + p - g.padding, w = place % X * g.stride + q - g.padding;
  const bool is_inside = h >= 0 && h < g.H && w >= 0 && w < g.W;
  columns[index] = is_inside ? x[(((chunk.image + image) * g.C + c) * g.H + h) * g.W + w] : narrow<T>(accumulator<T>(0));
}

// The transpose: a thread adds up what belongs to its pixel, in the order of (p, q), onto what the image's chunks before left in
// `sums`, and leaves it there or, with the image's last chunk, rounded in `out`.
template <class T>
__global__ void __launch_bounds__(256) add_columns(const ConvolutionGeometry g, const ConvolutionChunk chunk, const accumulator<T>* columns,
                                                   accumulator<T>* sums, T* out, std::int64_t X, bool is_first, bool is_last) {
  using A = accumulator<T>;
  const std::int64_t plane = g.H * g.W, index = global_index();
  if (index >= chunk.images * g.C * plane) return;
  const std::int64_t image = index / (g.C * plane), c = index / plane % g.C, h = index / g.W % g.H, w = index % g.W;
  A total = is_first ? A(0) : sums[index];
  columns += c * g.P * g.Q * chunk.positions + image * chunk.positions_per_image;
  const int stride = int(g.stride), P = int(g.P), Q = int(g.Q);
  for (int p = 0; p < P; ++p) {
    const int down = int(h + g.padding) - p;
    const int y = down / stride - int(chunk.y);
    const bool is_row = down >= 0 && down % stride == 0 && y >= 0 && y < int(chunk.rows);
    for (int q = 0; q < Q; ++q, columns += chunk.positions) {
      const int across = int(w + g.padding) - q, column = across / stride;
      if (is_row && across >= 0 && across % stride == 0 && column < int(X)) total += columns[std::int64_t(y) * X + column];
    }
  }
  if (is_last) out[index] = narrow<T>(total);
  else sums[index] = total;
}

// The gradients of the chunk's positions as [O, positions]: its images side by side.
template <class T>
__global__ void __launch_bounds__(256) gather_grads(const ConvolutionGeometry g, const ConvolutionChunk chunk, const T* grad_out, std::int64_t plane, T* grads) {
  const std::int64_t index = global_index();
  if (index >= g.O * chunk.positions) return;
  const std::int64_t o = index / chunk.positions, position = index % chunk.positions;
  const std::int64_t image = position / chunk.positions_per_image, place = position % chunk.positions_per_image;
  grads[index] = grad_out[(image * g.O + o) * plane + place];
}

constexpr int kSumThreads = 256;

// One block a channel.
template <class T>
__global__ void __launch_bounds__(kSumThreads) sum_channel(const T* grad_out, std::int64_t B, std::int64_t O, std::int64_t plane, void* out, bool is_out_wide) {
  using A = accumulator<T>;
  REFRAIN_SHARED(A, slots, [kSumThreads / 32]);
  const std::int64_t o = blockIdx.x;
  A total = 0;
  for (std::int64_t i = threadIdx.x; i < B * plane; i += kSumThreads) total += widen(grad_out[(i / plane * O + o) * plane + i % plane]);
  total = cuda::block_reduce<kSumThreads>(total, slots, cuda::Add{});
  if (threadIdx.x != 0) return;
  if (is_out_wide) static_cast<A*>(out)[o] = total;
  else static_cast<T*>(out)[o] = narrow<T>(total);
}

namespace {

std::int64_t ld(std::int64_t width) { return std::max<std::int64_t>(1, width); }

template <class T>
void forward(const Cuda& device, const Conv2dForward& k) {
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.weight.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X();
  T* columns = data_of<T>(k.scratch);
  for_chunks(g, [&](const ConvolutionChunk& chunk) {
    cuda::launch(k.name, fill_columns<T>, one_thread_each(g.window() * chunk.positions), device, g, chunk, data_of<T>(k.x), columns, g.X());
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.out.dtype(), .m = g.O, .n = chunk.positions_per_image, .k = g.window(),
                               .a = {k.weight.address(), ld(g.window())},
                               .b = {columns, chunk.positions, false, {0, 0, chunk.positions_per_image}},
                               .c = data_of<T>(k.out) + chunk.image * g.O * plane + chunk.y * g.X(), .c_dtype = k.out.dtype(), .ldc = plane,
                               .batch = {1, 1, chunk.images}, .c_batch_stride = g.O * plane,
                               .row_bias = k.bias.address(), .bias_dtype = k.bias.dtype(), .engine = k.engine});
  });
}

// Columns, and the images they are added up into when those are 16-bit, are of the sums' type.
template <class T>
void backward_input(const Cuda& device, const Conv2dBackwardInput& k) {
  using A = accumulator<T>;
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.out.shape(), k.weight.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X(), image_size = g.C * g.H * g.W;
  A* columns = data_of<A>(k.scratch);
  for_chunks(g, [&](const ConvolutionChunk& chunk) {
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.out.dtype(), .m = g.window(), .n = chunk.positions_per_image, .k = g.O,
                               .a = {k.weight.address(), ld(g.window()), true},
                               .b = {data_of<T>(k.grad_out) + chunk.image * g.O * plane + chunk.y * g.X(), plane, false, {0, 0, g.O * plane}},
                               .c = columns, .c_dtype = k.scratch.dtype(), .ldc = chunk.positions,
                               .batch = {1, 1, chunk.images}, .c_batch_stride = chunk.positions_per_image, .engine = k.engine});
    T* out = data_of<T>(k.out) + chunk.image * image_size;
    A* sums = nullptr;
    if constexpr (std::is_same_v<T, A>) sums = out;
    else sums = columns + g.scratch_size();
    cuda::launch(k.name, add_columns<T>, one_thread_each(chunk.images * image_size), device, g, chunk, static_cast<const A*>(columns), sums, out, g.X(),
                 chunk.y == 0, chunk.y + chunk.rows == g.Y());
  });
}

// The weight's gradient is summed up over the chunks in the sums' type: in `sums` where `out` is 16-bit.
template <class T>
void backward_weight(const Cuda& device, const Conv2dBackwardWeight& k) {
  using A = accumulator<T>;
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.out.shape(), k.stride, k.padding);
  const std::int64_t plane = g.Y() * g.X(), positions = ConvolutionChunkSize::of(g).positions(g);
  T* columns = data_of<T>(k.scratch);
  T* grads = columns + g.window() * positions;
  const bool is_rounded = k.out.dtype() != k.sums.dtype();
  A* sums = data_of<A>(k.sums);
  A* total = is_rounded ? sums : data_of<A>(k.out);
  A* workspace = is_rounded ? sums + k.out.numel() : sums;
  const auto add = [&](std::int64_t count, bool is_first) {
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.x.dtype(), .m = g.O, .n = g.window(), .k = count, .a = {grads, ld(count)},
                               .b = {columns, ld(count), true}, .c = total, .c_dtype = k.sums.dtype(), .ldc = ld(g.window()), .beta = is_first ? 0.0 : 1.0,
                               .may_split_k = true, .workspace = workspace,
                               .workspace_bytes = std::int64_t(sizeof(A)) * (k.sums.numel() - (workspace - sums)), .engine = k.engine});
  };
  if (g.B == 0) add(0, true);
  bool is_first = true;
  for_chunks(g, [&](const ConvolutionChunk& chunk) {
    cuda::launch(k.name, fill_columns<T>, one_thread_each(g.window() * chunk.positions), device, g, chunk, data_of<T>(k.x), columns, g.X());
    cuda::launch(k.name, gather_grads<T>, one_thread_each(g.O * chunk.positions), device, g, chunk,
                 data_of<T>(k.grad_out) + chunk.image * g.O * plane + chunk.y * g.X(), plane, grads);
    add(chunk.positions, is_first);
    is_first = false;
  });
  if constexpr (!std::is_same_v<T, A>) {
    if (is_rounded) {
      cuda::launch(k.name, convert_values<A, T>, one_thread_each(k.out.numel()), device, static_cast<const A*>(total), k.out.numel(), data_of<T>(k.out));
    }
  }
}

}  // namespace

}  // namespace convolution_kernels

void run(Cuda device, const Conv2dForward& k) {
  if (!k.out.has_bytes() || cuda::run_cudnn(device, k)) return;
  cuda::dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) { convolution_kernels::forward<T>(device, k); });
}
void run(Cuda device, const Conv2dBackwardInput& k) {
  if (!k.out.has_bytes() || cuda::run_cudnn(device, k)) return;
  cuda::dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) { convolution_kernels::backward_input<T>(device, k); });
}
void run(Cuda device, const Conv2dBackwardWeight& k) {
  if (!k.out.has_bytes() || cuda::run_cudnn(device, k)) return;
  cuda::dispatch_floating(k.x.dtype(), k.name, [&]<class T>(T) { convolution_kernels::backward_weight<T>(device, k); });
}
void run(Cuda device, const Conv2dBackwardBias& k) {
  if (!k.out.has_bytes()) return;
  cuda::dispatch_floating(k.grad_out.dtype(), k.name, [&]<class T>(T) {
    const std::int64_t B = k.grad_out.dim(0), O = k.grad_out.dim(1), plane = k.grad_out.dim(2) * k.grad_out.dim(3);
    cuda::launch(k.name, convolution_kernels::sum_channel<T>, {.grid = dim3(unsigned(O)), .block = dim3(convolution_kernels::kSumThreads)}, device,
                 cuda::data_of<T>(k.grad_out), B, O, plane, static_cast<void*>(k.out.address()), k.out.dtype() != k.grad_out.dtype());
  });
}

}  // namespace refrain
