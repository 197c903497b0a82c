// Convolution and patch embedding on CUDA against the CPU's kernels.
#include <refrain/tests/cuda/convolution_cases.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr GemmEngine kEngines[] = {GemmEngine::builtin, GemmEngine::automatic};

}  // namespace

TEST_CASE("cuda conv2d: through columns whole numbers have the CPU's bits, in every dtype and at any start") {
  for (const Conv& c : kConvs)
    for (DType dtype : kFloatingDtypes)
      for (int kind = 0; kind < 3; ++kind) {
        if (kind == 2 && !is_16_bit(dtype)) continue;
        const DType weights = kind == 2 ? DType::f32 : dtype;
        const Tensor x = whole_numbers(c.x, dtype, 1), weight = whole_numbers(c.weight, dtype, 2), grad = whole_numbers(c.out(), dtype, 3);
        const Tensor bias = kind == 0 ? Tensor() : whole_numbers({c.weight[0]}, weights, 4);
        const std::vector<Tensor> expected = run_all(c, x, weight, bias, grad, weights, GemmEngine::builtin, 0);
        for (GemmEngine engine : {GemmEngine::builtin, GemmEngine::cublaslt}) {
          if (engine == GemmEngine::cublaslt && (kind != 0 || !cuda::cublaslt_library().is_usable())) continue;  // it has no biases of rows
          INFO(c.x << " with " << c.weight << " " << dtype << ", kind " << kind << ", engine " << int(engine));
          const CudaGuarded shifted(x, kind);
          check_same(run_all(c, shifted.tensor, on_cuda(weight), on_cuda(bias), on_cuda(grad), weights, engine, kind), expected);
        }
      }
}

TEST_CASE("cuda conv2d: chunks of rows of one image, and of several images, have the CPU's bits") {
  // 2^20 elements of columns are a chunk: here seven rows of one image, or three images of four.
  const Conv rows{{1, 64, 10, 256}, {1, 64, 3, 3}, 1, 1}, images{{4, 32, 32, 32}, {1, 32, 3, 3}, 1, 1};
  for (const Conv& c : {rows, images}) {
    const DType dtype = DType::bf16;
    const Tensor x = whole_numbers(c.x, dtype, 1), weight = whole_numbers(c.weight, dtype, 2), grad = whole_numbers(c.out(), dtype, 3), bias = whole_numbers({1}, dtype, 4);
    check_same(run_all(c, on_cuda(x), on_cuda(weight), on_cuda(bias), on_cuda(grad), dtype, GemmEngine::builtin, 0),
               run_all(c, x, weight, bias, grad, dtype, GemmEngine::builtin, 0));
  }
}

namespace {

struct Patches {
  Shape x, weight;
  PatchGeometry geometry() const { return PatchGeometry::of("test", x, weight); }
};
const Patches kPatches[] = {{{2, 3, 8, 12}, {8, 3, 4, 4}}, {{1, 1, 1, 1}, {1, 1, 1, 1}}, {{3, 2, 6, 10}, {7, 2, 3, 5}}, {{0, 3, 4, 4}, {8, 3, 2, 2}}};

std::vector<Tensor> run_patches(const Patches& c, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& grad, DType weights, GemmEngine engine) {
  const PatchGeometry g = c.geometry();
  const Device device = x.device();
  const DType dtype = grad.dtype(), sums = accumulator_dtype(dtype);
  const Tensor out = poisoned({g.B, g.patches(), g.D}, dtype, device), grad_x = poisoned(c.x, x.dtype(), device);
  const Tensor grad_weight = poisoned(c.weight, weights, device), grad_bias = poisoned({g.D}, weights, device);
  launch(PatchEmbeddingForward{.x = x, .weight = weight, .bias = bias, .out = out, .scratch = poisoned({g.scratch_size()}, dtype, device), .engine = engine});
  launch(PatchEmbeddingBackwardInput{.grad_out = grad, .weight = weight, .out = grad_x, .scratch = poisoned({g.scratch_size()}, sums, device), .engine = engine});
  launch(PatchEmbeddingBackwardWeight{.grad_out = grad, .x = x, .out = grad_weight, .grad_bias = grad_bias, .scratch = poisoned({g.scratch_size()}, dtype, device),
                                      .sums = poisoned({g.weight_sums_size(weights)}, sums, device), .engine = engine});
  return {out, grad_x, grad_weight, grad_bias};
}

}  // namespace

TEST_CASE("cuda patch_embedding: whole numbers have the CPU's bits for every dtype of pixels, products and gradients") {
  for (const Patches& c : kPatches)
    for (DType dtype : kFloatingDtypes)
      for (DType pixels : kFloatingDtypes)
        for (DType weights : {dtype, DType::f32}) {
          if (weights != dtype && !is_16_bit(dtype)) continue;
          const PatchGeometry g = c.geometry();
          const Tensor x = whole_numbers(c.x, pixels, 1), weight = whole_numbers(c.weight, dtype, 2), grad = whole_numbers({g.B, g.patches(), g.D}, dtype, 3);
          const Tensor bias = pixels == DType::f16 ? Tensor() : whole_numbers({g.D}, weights, 4);
          const std::vector<Tensor> expected = run_patches(c, x, weight, bias, grad, weights, GemmEngine::builtin);
          for (GemmEngine engine : kEngines) {
            INFO(c.x << " with " << c.weight << " " << dtype << ", pixels " << pixels << ", weights " << weights << ", engine " << int(engine));
            check_same(run_patches(c, on_cuda(x), on_cuda(weight), on_cuda(bias), on_cuda(grad), weights, engine), expected);
          }
        }
}

TEST_CASE("cuda patch_embedding: f64 pixels are rounded once, also where f32 lies half way between two of 16 bits") {
  const double tie = 1 + 0x1p-8;  // between bf16's 1 and 1 + 2^-7
  for (DType dtype : {DType::bf16, DType::f16}) {
    const double step = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const Tensor x = tensor_of({1 + step + 0x1p-40, 1 + step - 0x1p-40, 1 + step, tie}, {1, 1, 2, 2}, DType::f64), weight = tensor_of({1}, {1, 1, 1, 1}, dtype);
    const Tensor grad = whole_numbers({1, 4, 1}, dtype, 1);
    const Patches c{x.shape(), weight.shape()};
    check_same(run_patches(c, on_cuda(x), on_cuda(weight), Tensor(), on_cuda(grad), dtype, GemmEngine::builtin),
               run_patches(c, x, weight, Tensor(), grad, dtype, GemmEngine::builtin));
  }
}

TEST_CASE("cuda convolutions: outputs without bytes are left out") {
  const Device cuda = cuda_device();
  const Tensor x = on_cuda(whole_numbers({1, 1, 2, 2}, DType::f32, 1)), weight = on_cuda(whole_numbers({1, 1, 1, 1}, DType::f32, 2));
  const Conv c{x.shape(), weight.shape(), 1, 0};
  const ConvolutionGeometry g = c.geometry();
  const Tensor scratch = empty({g.weight_scratch_size()}, DType::f32, cuda), none = without_bytes({1, 1, 2, 2}, DType::f32, cuda);
  launch(Conv2dForward{.x = x, .weight = weight, .bias = {}, .out = none, .scratch = empty({g.scratch_size()}, DType::f32, cuda)});
  launch(Conv2dBackwardInput{.grad_out = x, .weight = weight, .out = none, .scratch = empty({g.input_scratch_size(DType::f32)}, DType::f32, cuda)});
  launch(Conv2dBackwardWeight{.grad_out = x, .x = x, .out = without_bytes({1, 1, 1, 1}, DType::f32, cuda), .scratch = scratch,
                              .sums = empty({g.weight_sums_size(DType::f32)}, DType::f32, cuda)});
  launch(Conv2dBackwardBias{.grad_out = x, .out = without_bytes({1}, DType::f32, cuda)});
}
