#include <refrain/bench/ops/cases.h>
#include <refrain/kernels/convolution/convolution.h>

namespace refrain::bench {

std::vector<Case> convolution_cases() {
  const bool is_large = setting().is_large();
  const Shape image{is_large ? 64 : 8, 3, 224, 224}, patch{is_large ? 1024 : 384, 3, 16, 16}, features{16, 64, 28, 28}, window{64, 64, 3, 3};
  const std::string vit = is_large ? "vit_l b64" : "vit_s";
  const DType sum = accumulator_dtype(setting().dtype);
  return {
      {"convolution/patch_embedding/" + vit, [=] {
         const PatchGeometry g = PatchGeometry::of("bench", image, patch);
         const Tensor x = uniform(image), weight = uniform(patch), bias = uniform({g.D}), out = space({g.B, g.patches(), g.D});
         const Tensor scratch = space({g.scratch_size()});
         return prepared(PatchEmbeddingForward{.x = x, .weight = weight, .bias = bias, .out = out, .scratch = scratch}, {x, weight, bias, out, scratch});
       }},
      {"convolution/patch_embedding_backward_weight/" + vit, [=] {
         const PatchGeometry g = PatchGeometry::of("bench", image, patch);
         const Tensor grad = uniform({g.B, g.patches(), g.D}), x = uniform(image), out = space(patch), bias = space({g.D});
         const Tensor scratch = space({g.scratch_size()}), sums = space({g.weight_sums_size(setting().dtype)}, sum);
         return prepared(PatchEmbeddingBackwardWeight{.grad_out = grad, .x = x, .out = out, .grad_bias = bias, .scratch = scratch, .sums = sums},
                         {grad, x, out, bias, scratch, sums});
       }},
      {"convolution/conv2d/16x64x28x28", [=] {
         const ConvolutionGeometry g = ConvolutionGeometry::of("bench", features, window, 1, 1);
         const Tensor x = uniform(features), weight = uniform(window), out = space(features), scratch = space({g.scratch_size()});
         return prepared(Conv2dForward{.x = x, .weight = weight, .bias = {}, .out = out, .scratch = scratch, .padding = 1}, {x, weight, out, scratch});
       }},
      {"convolution/conv2d_backward_input/16x64x28x28", [=] {
         const ConvolutionGeometry g = ConvolutionGeometry::of("bench", features, window, 1, 1);
         const Tensor grad = uniform(features), weight = uniform(window), out = space(features), scratch = space({g.input_scratch_size(setting().dtype)}, sum);
         return prepared(Conv2dBackwardInput{.grad_out = grad, .weight = weight, .out = out, .scratch = scratch, .padding = 1}, {grad, weight, out, scratch});
       }},
      {"convolution/conv2d_backward_weight/16x64x28x28", [=] {
         const ConvolutionGeometry g = ConvolutionGeometry::of("bench", features, window, 1, 1);
         const Tensor grad = uniform(features), x = uniform(features), out = space(window);
         const Tensor scratch = space({g.weight_scratch_size()}), sums = space({g.weight_sums_size(setting().dtype)}, sum);
         return prepared(Conv2dBackwardWeight{.grad_out = grad, .x = x, .out = out, .scratch = scratch, .sums = sums, .padding = 1}, {grad, x, out, scratch, sums});
       }},
  };
}

}  // namespace refrain::bench
