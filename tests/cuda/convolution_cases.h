// Convolutions for tests of the kernels on CUDA, and all outputs of one.
#pragma once

#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/tests/cuda/product_cases.h>

#include <cmath>
#include <vector>

namespace refrain::testing {

struct Conv {
  Shape x, weight;
  std::int64_t stride, padding;
  ConvolutionGeometry geometry() const { return ConvolutionGeometry::of("test", x, weight, stride, padding); }
  Shape out() const { return {geometry().B, geometry().O, geometry().Y(), geometry().X()}; }
};
inline const Conv kConvs[] = {{{2, 3, 7, 9}, {5, 3, 3, 3}, 1, 1}, {{1, 1, 1, 1}, {1, 1, 1, 1}, 1, 0},
                              {{3, 2, 8, 8}, {4, 2, 2, 3}, 2, 0}, {{2, 8, 6, 8}, {8, 8, 1, 1}, 1, 0},
                              {{1, 2, 5, 6}, {3, 2, 4, 2}, 3, 2}, {{0, 2, 4, 4}, {3, 2, 3, 3}, 1, 1}};

// All outputs of the kernels of one convolution: out, grad_x, grad_weight, grad_bias. They start `shift` elements behind a
// multiple of 64 bytes.
inline std::vector<Tensor> run_all(const Conv& c, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& grad,
                                   DType weights, GemmEngine engine, std::int64_t shift) {
  const ConvolutionGeometry g = c.geometry();
  const Device device = x.device();
  const DType dtype = x.dtype(), sums = accumulator_dtype(dtype);
  const auto make = [&](const Shape& shape, DType d) {
    if (device.kind() == DeviceKind::cpu) return full(shape, std::nan(""), d);
    const Tensor all = poisoned({numel_of(shape) + shift}, d, device);
    return Tensor(all.storage(), all.device(), d, shape, contiguous_strides(shape), shift);
  };
  const Tensor out = make(c.out(), dtype), grad_x = make(c.x, dtype), grad_weight = make(c.weight, weights),
               grad_bias = make({g.O}, weights);
  const std::int64_t room = g.workspace_bytes(device.kind(), dtype);
  const Tensor workspace = room == 0 ? Tensor() : poisoned({room}, DType::u8, device);
  launch(Conv2dForward{.x = x,
                       .weight = weight,
                       .bias = bias,
                       .out = out,
                       .scratch = poisoned({g.scratch_size()}, dtype, device),
                       .workspace = workspace,
                       .stride = c.stride,
                       .padding = c.padding,
                       .engine = engine});
  launch(Conv2dBackwardInput{.grad_out = grad,
                             .weight = weight,
                             .out = grad_x,
                             .scratch = poisoned({g.input_scratch_size(dtype)}, sums, device),
                             .workspace = workspace,
                             .stride = c.stride,
                             .padding = c.padding,
                             .engine = engine});
  launch(Conv2dBackwardWeight{.grad_out = grad,
                              .x = x,
                              .out = grad_weight,
                              .scratch = poisoned({g.weight_scratch_size()}, dtype, device),
                              .sums = poisoned({g.weight_sums_size(weights)}, sums, device),
                              .workspace = workspace,
                              .stride = c.stride,
                              .padding = c.padding,
                              .engine = engine});
  launch(Conv2dBackwardBias{.grad_out = grad, .out = grad_bias});
  return {out, grad_x, grad_weight, grad_bias};
}

inline void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("output " << i);
    CHECK(same_bits(on_cpu(got[i]), expected[i]));
  }
}

}  // namespace refrain::testing
