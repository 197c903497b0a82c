// Vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", 2020), with torchvision's arithmetic and
// initial values: pre-norm blocks, eps 1e-6, GELU by erf, class token, learned positions, head on the class token.
//
// Letters: B samples, C channels, H × W pixels, T tokens (patches and the class token), D width.
#pragma once

#include <refrain/models/block.h>
#include <refrain/models/head.h>
#include <refrain/nn/patch_embedding.h>

#include <string_view>

namespace refrain {

struct VitConfig {
  std::int64_t image_height = 224, image_width = 224;
  std::int64_t channels = 3;
  std::int64_t patch = 16;
  std::int64_t width = 768;
  std::int64_t depth = 12;
  std::int64_t num_heads = 12;
  double mlp_ratio = 4;          // hidden width of the MLPs / width, rounded to a whole width
  std::int64_t num_classes = 1000;
  double dropout = 0;            // after the positions, in the MLPs and after both branches
  double attention_dropout = 0;  // of attention weights
  double stochastic_depth = 0;   // of the last block; rises linearly from 0 at the first
  std::int64_t mlp_chunk = 0;    // rows (a token of a sample each) whose MLP values exist at a time; 0: all
};

// The published sizes: `vit_ti_16`, `vit_s_16`, `vit_b_16`, `vit_l_16`, `vit_h_14`, each also with patch 14, 16 or 32.
// Throws InvalidArgument for other names.
VitConfig vit_config(std::string_view name);

class VitEmbed : public StageModule {
 public:
  explicit VitEmbed(const VitConfig& config);
  // [B, C, H, W] → [B, T, D]
  Tensor forward(const Tensor& images, const SideInputs& side) override;
  bool is_block() const override { return false; }

  Tensor class_token;  // [1, 1, D]
  Tensor position;     // [1, T, D]
  std::shared_ptr<PatchEmbedding> patch;
  std::shared_ptr<Dropout> dropout;

 private:
  Shape image_shape_;  // [C, H, W]
};

// [B, T, D] → [B, classes]
class VitHead : public HeadStage {
 public:
  explicit VitHead(const VitConfig& config);
  Tensor features(const Tensor& hidden, const SideInputs& side) override;
  Projection projection() const override { return {linear->weight, linear->bias}; }
  Tensor logits(const Tensor& features) const override { return (*linear)(features); }

  std::shared_ptr<LayerNorm> norm;
  std::shared_ptr<Linear> linear;
};

// [B, C, H, W] → logits [B, classes]
class Vit : public ChainModel {
 public:
  // Throws InvalidArgument for sizes that do not fit: image by patch, width by heads.
  explicit Vit(const VitConfig& config);
  const VitConfig& config() const { return config_; }

  std::shared_ptr<VitEmbed> embed;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<VitHead> head;

 private:
  VitConfig config_;
};

}  // namespace refrain
