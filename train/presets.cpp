#include <refrain/train/presets.h>

#include <refrain/core/check.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>

namespace refrain {

void apply_preset(Config& config) {
  if (config.preset.empty()) return;
  if (config.preset.starts_with("gpt2")) {
    const Gpt2Config shape = gpt2_config(config.preset);
    config.model = "gpt2";
    config.data_format = "text";
    config.vocab = shape.vocabulary;
    config.context = shape.context;
    config.width = shape.width;
    config.depth = shape.depth;
    config.num_heads = shape.num_heads;
    config.mlp_ratio = shape.mlp_ratio;
    return;
  }
  const VitConfig shape = vit_config(config.preset);
  config.model = "vit";
  config.patch_size = shape.patch;
  config.width = shape.width;
  config.depth = shape.depth;
  config.num_heads = shape.num_heads;
  config.mlp_ratio = shape.mlp_ratio;
}

}  // namespace refrain
