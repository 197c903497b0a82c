// GPT-2-style decoder (Radford et al., "Language models are unsupervised multitask learners", 2019): pre-norm blocks,
// eps 1e-5, causal attention, GELU by tanh, learned positions, head tied to the token embedding.
//
// Letters: B samples, T tokens, D width, V vocabulary.
#pragma once

#include <refrain/models/block.h>
#include <refrain/models/head.h>
#include <refrain/nn/embedding.h>

#include <string_view>

namespace refrain {

struct Gpt2Config {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;   // the longest T
  std::int64_t width = 768;
  std::int64_t depth = 12;
  std::int64_t num_heads = 12;
  double mlp_ratio = 4;          // hidden width of the MLPs / width, rounded to a whole width
  double dropout = 0.1;          // after the positions and after both branches
  double attention_dropout = 0.1;
  std::int64_t mlp_chunk = 0;    // rows (a token of a sample each) whose MLP values exist at a time; 0: all
};

// The published sizes: `gpt2`, `gpt2_medium`, `gpt2_large`, `gpt2_xl`. Throws InvalidArgument for other names.
Gpt2Config gpt2_config(std::string_view name);

class Gpt2Embed : public StageModule {
 public:
  explicit Gpt2Embed(const Gpt2Config& config);
  // i64 tokens [B, T] → [B, T, D]
  Tensor forward(const Tensor& tokens, const SideInputs& side) override;
  bool is_block() const override { return false; }

  std::shared_ptr<Embedding> token;     // [V, D]
  std::shared_ptr<Embedding> position;  // [context, D]
  std::shared_ptr<Dropout> dropout;
};

// [B, T, D] → [B, T, V]
class Gpt2Head : public HeadStage {
 public:
  // Shares `token_weight` [V, D].
  Gpt2Head(const Gpt2Config& config, const Tensor& token_weight);
  Tensor features(const Tensor& hidden, const SideInputs& side) override;
  Projection projection() const override { return {weight, Tensor()}; }

  std::shared_ptr<LayerNorm> norm;
  Tensor weight;  // the token embedding's
};

// i64 tokens [B, T] → logits [B, T, V], T <= context
class Gpt2 : public ChainModel {
 public:
  explicit Gpt2(const Gpt2Config& config);
  const Gpt2Config& config() const { return config_; }

  std::shared_ptr<Gpt2Embed> embed;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Gpt2Head> head;

 private:
  Gpt2Config config_;
};

}  // namespace refrain
