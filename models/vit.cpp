#include <refrain/models/vit.h>

#include <refrain/autograd/ops/concat.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/view.h>

#include <array>
#include <cmath>

namespace refrain {

namespace {

struct Size {
  std::string_view name;
  std::int64_t width, depth, num_heads;
};
constexpr std::array<Size, 5> kSizes{{{"ti", 192, 12, 3}, {"s", 384, 12, 6}, {"b", 768, 12, 12}, {"l", 1024, 24, 16}, {"h", 1280, 32, 16}}};
constexpr std::array<std::int64_t, 3> kPatches{14, 16, 32};

std::int64_t num_patches(const VitConfig& config) {
  check(config.image_height > 0 && config.image_width > 0 && config.patch > 0 && config.image_height % config.patch == 0 &&
            config.image_width % config.patch == 0,
        "vit: expected image sides that are multiples of the patch, got ", config.image_height, " × ", config.image_width, " and patch ",
        config.patch);
  return (config.image_height / config.patch) * (config.image_width / config.patch);
}

BlockOptions block_options(const VitConfig& config, std::int64_t index) {
  const std::int64_t hidden = std::llround(double(config.width) * config.mlp_ratio);
  const LinearOptions linear{.bias = true, .weight_init = Init::xavier_uniform(), .bias_init = Init::normal(0, 1e-6)};
  const double last = double(config.depth > 1 ? config.depth - 1 : 1);
  return {.width = config.width,
          .hidden = hidden,
          .num_heads = config.num_heads,
          .eps = 1e-6,
          .dropout = config.dropout,
          .stochastic_depth = config.stochastic_depth * double(index) / last,
          .attention = {.dropout = config.attention_dropout},
          .mlp = {.gelu = GeluForm::erf, .dropout = config.dropout, .chunk_rows = config.mlp_chunk, .fc1 = linear, .fc2 = linear}};
}

}  // namespace

VitConfig vit_config(std::string_view name) {
  for (const Size& size : kSizes) {
    for (const std::int64_t patch : kPatches) {
      if (name != concat("vit_", size.name, "_", patch)) continue;
      VitConfig config;
      config.patch = patch;
      config.width = size.width;
      config.depth = size.depth;
      config.num_heads = size.num_heads;
      return config;
    }
  }
  fail("vit_config: expected vit_SIZE_PATCH with size ti, s, b, l or h and patch 14, 16 or 32, got '", name, "'");
}

VitEmbed::VitEmbed(const VitConfig& config) : image_shape_{config.channels, config.image_height, config.image_width} {
  const std::int64_t num_tokens = num_patches(config) + 1;
  const double fan_in = double(config.channels * config.patch * config.patch);
  add_parameter("class_token", class_token, {1, 1, config.width}, Init::zeros());
  add_parameter("position", position, {1, num_tokens, config.width}, Init::normal(0, 0.02));
  patch = add<PatchEmbedding>("patch", config.channels, config.width, config.patch, Init::trunc_normal(0, std::sqrt(1 / fan_in)),
                              Init::zeros());
  dropout = add<Dropout>("dropout", config.dropout);
}

Tensor VitEmbed::forward(const Tensor& images, const SideInputs&) {
  check(images.num_dims() == 4 && Shape{images.dim(1), images.dim(2), images.dim(3)} == image_shape_, "vit: images must be [B, ",
        image_shape_[0], ", ", image_shape_[1], ", ", image_shape_[2], "], got ", images.shape());
  const std::array<Tensor, 2> tokens{expand(class_token, {images.dim(0), 1, class_token.dim(2)}), (*patch)(images)};
  return (*dropout)(concat(tokens, 1) + position);
}

VitHead::VitHead(const VitConfig& config) {
  norm = add<LayerNorm>("norm", config.width, 1e-6);
  linear = add<Linear>("linear", config.width, config.num_classes, LinearOptions{.weight_init = Init::zeros(), .bias_init = Init::zeros()});
}

Tensor VitHead::features(const Tensor& hidden, const SideInputs&) {
  // The norm is per token, so only the class token's is needed.
  return (*norm)(select(hidden, 1, 0));
}

Vit::Vit(const VitConfig& config) : config_(config) {
  check(config.depth >= 1 && config.mlp_ratio > 0, "vit: expected depth >= 1 and mlp_ratio > 0, got ", config.depth, " and ", config.mlp_ratio);
  embed = add_stage<VitEmbed>("embed", config);
  for (std::int64_t i = 0; i < config.depth; ++i) blocks.push_back(add_stage<Block>(concat("blocks.", i), block_options(config, i)));
  head = add_stage<VitHead>("head", config);
}

}  // namespace refrain
