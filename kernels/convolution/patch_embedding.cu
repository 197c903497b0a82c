// Patch embedding: patches are laid out as rows [C, P, Q], a chunk of rows at a time, and multiplied like a linear layer. Pixels
// become the products' type as they are laid out.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/convolution/cuda/convert_once.cuh>
#include <refrain/kernels/matmul/cuda/product.h>

#include <algorithm>

namespace refrain {

namespace convolution_kernels {

using cuda::accumulator, cuda::data_of;

// Where element `index` of rows first … of the patches lies in the images.
__device__ __forceinline__ std::int64_t pixel_of(const PatchGeometry& g, std::int64_t first, std::int64_t index) {
  const std::int64_t window = g.C * g.P * g.Q, row = first + index / window, within = index % window;
  const std::int64_t c = within / (g.P * g.Q), p = within / g.Q % g.P, q = within % g.Q;
  const std::int64_t across = g.W / g.Q, patches = g.H / g.P * across, b = row / patches, patch = row % patches;
  return ((b * g.C + c) * g.H + patch / across * g.P + p) * g.W + patch % across * g.Q + q;
}

template <class X, class S>
__global__ void __launch_bounds__(256) lay_out_patches(const PatchGeometry g, std::int64_t first, std::int64_t count, const X* x, S* patches) {
  const std::int64_t index = global_index();
  if (index < count) patches[index] = convert_once<S>(x[pixel_of(g, first, index)]);
}

// The transpose: every pixel belongs to one patch.
template <class A, class X>
__global__ void __launch_bounds__(256) put_patches_back(const PatchGeometry g, std::int64_t first, std::int64_t count, const A* patches, X* x) {
  const std::int64_t index = global_index();
  if (index < count) x[pixel_of(g, first, index)] = convert_once<X>(patches[index]);
}

namespace {

std::int64_t patch_ld(std::int64_t width) { return std::max<std::int64_t>(1, width); }

template <class F>
void for_patch_rows(const PatchGeometry& g, F&& f) {
  const std::int64_t step = std::max<std::int64_t>(1, g.chunk_rows());
  for (std::int64_t row = 0; row < g.rows(); row += step) f(row, std::min(step, g.rows() - row));
}

template <class S>
void lay_out(const Cuda& device, std::string_view name, const PatchGeometry& g, std::int64_t row, std::int64_t rows, const In& x, S* patches) {
  const std::int64_t count = rows * g.window();
  cuda::dispatch_floating(x.dtype(), name, [&]<class X>(X) {
    cuda::launch(name, lay_out_patches<X, S>, one_thread_each(count), device, g, row, count, data_of<X>(x), patches);
  });
}

template <class S>
void forward_patches(const Cuda& device, const PatchEmbeddingForward& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.weight.shape());
  S* patches = data_of<S>(k.scratch);
  for_patch_rows(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(device, k.name, g, row, rows, k.x, patches);
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.out.dtype(), .m = rows, .n = g.D, .k = g.window(), .a = {patches, patch_ld(g.window())},
                               .b = {k.weight.address(), patch_ld(g.window()), true}, .c = data_of<S>(k.out) + row * g.D, .c_dtype = k.out.dtype(),
                               .ldc = patch_ld(g.D), .bias = k.bias.address(), .bias_dtype = k.bias.dtype(), .engine = k.engine});
  });
}

template <class S, class X>
void backward_patches(const Cuda& device, const PatchEmbeddingBackwardInput& k) {
  using A = accumulator<S>;
  const PatchGeometry g = PatchGeometry::of(k.name, k.out.shape(), k.weight.shape());
  A* patches = data_of<A>(k.scratch);
  for_patch_rows(g, [&](std::int64_t row, std::int64_t rows) {
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.grad_out.dtype(), .m = rows, .n = g.window(), .k = g.D,
                               .a = {data_of<S>(k.grad_out) + row * g.D, patch_ld(g.D)}, .b = {k.weight.address(), patch_ld(g.window())}, .c = patches,
                               .c_dtype = k.scratch.dtype(), .ldc = patch_ld(g.window()), .engine = k.engine});
    const std::int64_t count = rows * g.window();
    cuda::launch(k.name, put_patches_back<A, X>, one_thread_each(count), device, g, row, count, static_cast<const A*>(patches), data_of<X>(k.out));
  });
}

// The weight's gradient is summed up over the chunks in the sums' type: in `sums` where it is 16-bit.
template <class S>
void backward_patch_weight(const Cuda& device, const PatchEmbeddingBackwardWeight& k) {
  using A = accumulator<S>;
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.out.shape());
  const auto bytes_of = [](std::int64_t count) { return count * std::int64_t(sizeof(A)); };
  if (k.grad_bias.has_bytes()) {
    cuda::run_column_sums(device, cuda::ColumnSums{.name = k.name, .dtype = k.grad_out.dtype(), .x = k.grad_out.address(), .rows = g.rows(), .cols = g.D,
                                   .sums = k.grad_bias.address(), .sums_dtype = k.grad_bias.dtype(), .workspace = k.sums.address(),
                                   .workspace_bytes = bytes_of(k.sums.numel())});
  }
  S* patches = data_of<S>(k.scratch);
  const bool is_rounded = k.out.dtype() != k.sums.dtype();
  A* sums = data_of<A>(k.sums);
  A* total = is_rounded ? sums : data_of<A>(k.out);
  A* workspace = is_rounded ? sums + k.out.numel() : sums;
  const auto add = [&](std::int64_t row, std::int64_t rows, bool is_first) {
    cuda::run_product(device, cuda::Product{.name = k.name, .dtype = k.grad_out.dtype(), .m = g.D, .n = g.window(), .k = rows,
                               .a = {data_of<S>(k.grad_out) + row * g.D, patch_ld(g.D), true}, .b = {patches, patch_ld(g.window())}, .c = total,
                               .c_dtype = k.sums.dtype(), .ldc = patch_ld(g.window()), .beta = is_first ? 0.0 : 1.0, .may_split_k = true,
                               .workspace = workspace, .workspace_bytes = bytes_of(k.sums.numel() - (workspace - sums)), .engine = k.engine});
  };
  if (g.rows() == 0) add(0, 0, true);
  for_patch_rows(g, [&](std::int64_t row, std::int64_t rows) {
    lay_out(device, k.name, g, row, rows, k.x, patches);
    add(row, rows, row == 0);
  });
  if constexpr (!std::is_same_v<S, A>) {
    if (is_rounded) {
      cuda::launch(k.name, convert_values<A, S>, one_thread_each(k.out.numel()), device, static_cast<const A*>(total), k.out.numel(), data_of<S>(k.out));
    }
  }
}

}  // namespace

}  // namespace convolution_kernels

void run(Cuda device, const PatchEmbeddingForward& k) {
  if (k.out.has_bytes()) cuda::dispatch_floating(k.out.dtype(), k.name, [&]<class S>(S) { convolution_kernels::forward_patches<S>(device, k); });
}
void run(Cuda device, const PatchEmbeddingBackwardInput& k) {
  if (!k.out.has_bytes()) return;
  cuda::dispatch_floating(k.grad_out.dtype(), k.name, [&]<class S>(S) {
    cuda::dispatch_floating(k.out.dtype(), k.name, [&]<class X>(X) { convolution_kernels::backward_patches<S, X>(device, k); });
  });
}
void run(Cuda device, const PatchEmbeddingBackwardWeight& k) {
  if (k.out.has_bytes()) cuda::dispatch_floating(k.grad_out.dtype(), k.name, [&]<class S>(S) { convolution_kernels::backward_patch_weight<S>(device, k); });
}

}  // namespace refrain
