#include <refrain/nn/patch_embedding.h>

#include <refrain/autograd/ops/convolution.h>

#include <cmath>

namespace refrain {

PatchEmbedding::PatchEmbedding(std::int64_t channels, std::int64_t width, std::int64_t patch, const std::optional<Init>& weight_init,
                               const std::optional<Init>& bias_init) {
  check(channels > 0 && width > 0 && patch > 0, "PatchEmbedding: expected positive sizes, got ", channels, " channels, width ", width,
        ", patch ", patch);
  const double bound = 1 / std::sqrt(double(channels * patch * patch));
  const Init standard = Init::uniform(-bound, bound);
  add_parameter("weight", weight, {width, channels, patch, patch}, weight_init.value_or(standard));
  add_parameter("bias", bias, {width}, bias_init.value_or(standard));
}

Tensor PatchEmbedding::operator()(const Tensor& images) const {
  const ModuleScope scope = enter();
  return patch_embedding(images, weight, bias);
}

}  // namespace refrain
