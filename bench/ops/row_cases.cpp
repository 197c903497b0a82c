#include <refrain/bench/ops/cases.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/loss/loss.h>
#include <refrain/kernels/norm/norm.h>
#include <refrain/kernels/softmax/softmax.h>

namespace refrain::bench {

namespace {

Tensor f32(const Shape& shape) { return space(shape, DType::f32); }

void add_layer_norm(std::vector<Case>& cases, const std::string& size, std::int64_t R, std::int64_t C) {
  cases.push_back({"norm/layer_norm/" + size, [=] {
                     const Tensor x = uniform({R, C}), weight = uniform({C}), bias = uniform({C}), out = space({R, C}), mean = f32({R}), rstd = f32({R});
                     return prepared(LayerNormForward{.x = x, .weight = weight, .bias = bias, .eps = 1e-6, .out = out, .mean = mean, .rstd = rstd},
                                     {x, weight, bias, out, mean, rstd});
                   }});
  cases.push_back({"norm/layer_norm_backward/" + size, [=] {
                     const Tensor grad = uniform({R, C}), x = uniform({R, C}), weight = uniform({C}), mean = uniform({R}, DType::f32), rstd = uniform({R}, DType::f32);
                     const Tensor out = space({R, C}), grad_weight = space({C}), grad_bias = space({C}), scratch = f32({LayerNormBackward::num_scratch(out.device().target(), R, C)});
                     return prepared(LayerNormBackward{.grad_out = grad, .x = x, .mean = mean, .rstd = rstd, .weight = weight, .out = out,
                                                       .grad_weight = grad_weight, .grad_bias = grad_bias, .scratch = scratch},
                                     {grad, x, weight, mean, rstd, out, grad_weight, grad_bias, scratch});
                   }});
}

void add_softmax(std::vector<Case>& cases, const std::string& size, std::int64_t R, std::int64_t C) {
  cases.push_back({"softmax/softmax/" + size, [=] {
                     const Tensor x = uniform({R, C}), out = space({R, C});
                     return prepared(SoftmaxForward{.x = x, .dim = 1, .is_log = false, .out = out}, {x, out});
                   }});
  cases.push_back({"softmax/softmax_backward/" + size, [=] {
                     const Tensor y = uniform({R, C}), grad = uniform({R, C}), out = space({R, C});
                     return prepared(SoftmaxBackward{.y = y, .grad_out = grad, .dim = 1, .is_log = false, .out = out}, {y, grad, out});
                   }});
}

void add_cross_entropy(std::vector<Case>& cases, const std::string& size, std::int64_t R, std::int64_t V) {
  cases.push_back({"loss/cross_entropy/" + size, [=] {
                     const Tensor logits = uniform({R, V}), targets = indices({R}, V), out = f32({}), statistics = f32({R, 2}), rows = f32({R});
                     return prepared(CrossEntropyForward{.logits = logits, .targets = targets, .ignore_index = -100, .label_smoothing = 0,
                                                         .reduction = Reduction::mean, .scale = 1, .out = out, .statistics = statistics, .row_losses = rows},
                                     {logits, targets, out, statistics, rows});
                   }});
  cases.push_back({"loss/cross_entropy_backward/" + size, [=] {
                     const Tensor grad = full({}, 1, DType::f32, setting().device), logits = uniform({R, V}), targets = indices({R}, V), out = space({R, V});
                     const Tensor statistics = full({R, 2}, 1, DType::f32, setting().device);
                     return prepared(CrossEntropyBackward{.grad_out = grad, .logits = logits, .targets = targets, .statistics = statistics, .ignore_index = -100,
                                                          .label_smoothing = 0, .reduction = Reduction::mean, .scale = 1, .out = out},
                                     {grad, logits, targets, out, statistics});
                   }});
}

void add_embedding(std::vector<Case>& cases, const std::string& size, std::int64_t count, std::int64_t V, std::int64_t D) {
  cases.push_back({"embedding/embedding/" + size, [=] {
                     const Tensor weight = uniform({V, D}), at = indices({count}, V), out = space({count, D});
                     return prepared(EmbeddingForward{.indices = at, .weight = weight, .out = out}, {weight, at, out});
                   }});
  cases.push_back({"embedding/embedding_backward/" + size, [=] {
                     const Tensor grad = uniform({count, D}), at = indices({count}, V), out = space({V, D});
                     const Tensor order = scratch_space(EmbeddingBackward::num_order(setting().device.target(), count, V, out.dtype()), DType::i64);
                     return prepared(EmbeddingBackward{.grad_out = grad, .indices = at, .padding_idx = -1, .out = out, .order = order}, {grad, at, out, order});
                   }});
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> cases;
  if (setting().is_large()) {
    add_layer_norm(cases, "vit_l b64", 12608, 1024);
    add_layer_norm(cases, "gpt2 32x1024", 32768, 768);
    add_softmax(cases, "65536x1000", 65536, 1000);
    add_cross_entropy(cases, "8192x50257", 8192, 50257);
    add_embedding(cases, "gpt2 32x1024", 32768, 50257, 768);
    return cases;
  }
  add_layer_norm(cases, "vit_s", 1576, 384);
  add_layer_norm(cases, "small", 1088, 64);
  add_softmax(cases, "9456x197", 9456, 197);
  add_cross_entropy(cases, "64x10", 64, 10);
  add_cross_entropy(cases, "1024x50257", 1024, 50257);
  add_embedding(cases, "gpt2", 1024, 50257, 768);
  return cases;
}

}  // namespace refrain::bench
