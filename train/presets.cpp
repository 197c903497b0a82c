#include <refrain/train/presets.h>

#include <refrain/core/check.h>

namespace refrain {

void apply_preset(Config& config) {
  struct Vit {
    std::string_view name;
    std::int64_t patch_size, width, depth, num_heads;
  };
  static constexpr Vit kVits[] = {{"vit_ti_16", 16, 192, 12, 3},  {"vit_s_16", 16, 384, 12, 6},   {"vit_s_32", 32, 384, 12, 6},
                                  {"vit_b_16", 16, 768, 12, 12},  {"vit_b_32", 32, 768, 12, 12},  {"vit_l_16", 16, 1024, 24, 16},
                                  {"vit_l_32", 32, 1024, 24, 16}, {"vit_h_14", 14, 1280, 32, 16}};
  if (config.preset.empty()) return;
  config.mlp_ratio = 4;
  if (config.preset == "gpt2") {
    config.model = "gpt2";
    config.vocab = 50257;
    config.context = 1024;
    config.width = 768;
    config.depth = config.num_heads = 12;
    config.data_format = "text";
    return;
  }
  for (const Vit& vit : kVits) {
    if (vit.name != config.preset) continue;
    config.model = "vit";
    config.patch_size = vit.patch_size;
    config.width = vit.width;
    config.depth = vit.depth;
    config.num_heads = vit.num_heads;
    return;
  }
  fail("preset: '", config.preset, "' is not known");
}

}  // namespace refrain
