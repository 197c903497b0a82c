#include <refrain/nn/attention.h>

#include <refrain/autograd/ops/attention.h>
#include <refrain/autograd/ops/view.h>

namespace refrain {

namespace {

void check_options(std::string_view layer, std::int64_t width, std::int64_t num_heads, double dropout) {
  check(width > 0 && num_heads > 0 && width % num_heads == 0, layer, ": expected a width that is a multiple of num_heads, got ", width, " and ",
        num_heads);
  check(dropout >= 0 && dropout < 1, layer, ": expected a dropout in [0, 1), got ", dropout);
}

LinearOptions linear_options(const MultiHeadAttentionOptions& options, const Init& weight_init) {
  return {.bias = options.bias, .weight_init = weight_init, .bias_init = Init::zeros()};
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(std::int64_t width, std::int64_t num_heads, const MultiHeadAttentionOptions& options)
    : num_heads_(num_heads), causal_(options.causal), dropout_(options.dropout) {
  check_options("MultiHeadAttention", width, num_heads, options.dropout);
  qkv = add<Linear>("qkv", width, 3 * width, linear_options(options, options.qkv_init));
  proj = add<Linear>("proj", width, width, linear_options(options, options.proj_init));
}

Tensor MultiHeadAttention::operator()(const Tensor& x, const Tensor& key_mask) const {
  const ModuleScope scope = enter();
  return (*proj)(attention_packed((*qkv)(x), num_heads_, {.causal = causal_, .dropout = is_training() ? dropout_ : 0, .key_mask = key_mask}));
}

SeparateAttention::SeparateAttention(std::int64_t width, std::int64_t num_heads, const MultiHeadAttentionOptions& options)
    : num_heads_(num_heads), causal_(options.causal), dropout_(options.dropout) {
  check_options("SeparateAttention", width, num_heads, options.dropout);
  query = add<Linear>("query", width, width, linear_options(options, options.qkv_init));
  key = add<Linear>("key", width, width, linear_options(options, options.qkv_init));
  value = add<Linear>("value", width, width, linear_options(options, options.qkv_init));
  proj = add<Linear>("proj", width, width, linear_options(options, options.proj_init));
}

Tensor SeparateAttention::operator()(const Tensor& x, const Tensor& key_mask) const {
  const ModuleScope scope = enter();
  check(x.num_dims() == 3, "SeparateAttention: expected [B, T, C], got ", x.shape());
  const Shape by_head{x.dim(0), x.dim(1), num_heads_, x.dim(2) / num_heads_};
  const auto split = [&](const Tensor& t) { return reshape(t, by_head); };
  const Tensor q = split((*query)(x)), k = split((*key)(x)), v = split((*value)(x));
  const Tensor mixed = attention(q, k, v, {.causal = causal_, .dropout = is_training() ? dropout_ : 0, .key_mask = key_mask});
  return (*proj)(reshape(mixed, x.shape()));
}

}  // namespace refrain
