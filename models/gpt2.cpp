#include <refrain/models/gpt2.h>

#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/view.h>

#include <array>
#include <cmath>

namespace refrain {

namespace {

constexpr double kStd = 0.02;

struct Size {
  std::string_view name;
  std::int64_t width, depth, num_heads;
};
constexpr std::array<Size, 4> kSizes{{{"gpt2", 768, 12, 12}, {"gpt2_medium", 1024, 24, 16}, {"gpt2_large", 1280, 36, 20}, {"gpt2_xl", 1600, 48, 25}}};

BlockOptions block_options(const Gpt2Config& config) {
  // Each block adds two branches to the residual stream; this keeps its variance independent of the depth.
  const Init into_residual = Init::normal(0, kStd / std::sqrt(2 * double(config.depth)));
  const Init ordinary = Init::normal(0, kStd);
  return {.width = config.width,
          .hidden = std::llround(double(config.width) * config.mlp_ratio),
          .num_heads = config.num_heads,
          .eps = 1e-5,
          .dropout = config.dropout,
          .attention = {.causal = true, .dropout = config.attention_dropout, .qkv_init = ordinary, .proj_init = into_residual},
          .mlp = {.gelu = GeluForm::tanh,
                  .chunk_rows = config.mlp_chunk,
                  .fc1 = {.weight_init = ordinary, .bias_init = Init::zeros()},
                  .fc2 = {.weight_init = into_residual, .bias_init = Init::zeros()}}};
}

}  // namespace

Gpt2Config gpt2_config(std::string_view name) {
  for (const Size& size : kSizes) {
    if (name != size.name) continue;
    Gpt2Config config;
    config.width = size.width;
    config.depth = size.depth;
    config.num_heads = size.num_heads;
    return config;
  }
  fail("gpt2_config: expected gpt2, gpt2_medium, gpt2_large or gpt2_xl, got '", name, "'");
}

Gpt2Embed::Gpt2Embed(const Gpt2Config& config) {
  token = add<Embedding>("token", config.vocabulary, config.width, Init::normal(0, kStd));
  position = add<Embedding>("position", config.context, config.width, Init::normal(0, kStd));
  dropout = add<Dropout>("dropout", config.dropout);
}

Tensor Gpt2Embed::forward(const Tensor& tokens, const SideInputs&) {
  check(tokens.num_dims() == 2 && tokens.dim(1) <= position->weight.dim(0), "gpt2: tokens must be [B, T] with T <= ", position->weight.dim(0),
        ", got ", tokens.shape());
  return (*dropout)((*token)(tokens) + slice(position->weight, 0, 0, tokens.dim(1)));
}

Gpt2Head::Gpt2Head(const Gpt2Config& config, const Tensor& token_weight) : weight(token_weight) {
  norm = add<LayerNorm>("norm", config.width, 1e-5);
  add_tied("weight", weight);
}

Tensor Gpt2Head::features(const Tensor& hidden, const SideInputs&) { return (*norm)(hidden); }

Gpt2::Gpt2(const Gpt2Config& config) : config_(config) {
  check(config.depth >= 1 && config.mlp_ratio > 0, "gpt2: expected depth >= 1 and mlp_ratio > 0, got ", config.depth, " and ", config.mlp_ratio);
  embed = add_stage<Gpt2Embed>("embed", config);
  for (std::int64_t i = 0; i < config.depth; ++i) blocks.push_back(add_stage<Block>(concat("blocks.", i), block_options(config)));
  head = add_stage<Gpt2Head>("head", config, embed->token->weight);
}

}  // namespace refrain
