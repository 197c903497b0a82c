#include <refrain/bench/ops/cases.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/loss/loss.h>
#include <refrain/kernels/norm/norm.h>
#include <refrain/kernels/softmax/softmax.h>

namespace refrain::bench {

namespace {

Tensor f32(const Shape& shape) { return empty(shape, DType::f32); }

void add_layer_norm(std::vector<Case>& cases, const std::string& size, std::int64_t R, std::int64_t C) {
  cases.push_back({"norm/layer_norm/" + size, [=] {
                     const Tensor x = uniform({R, C}), weight = uniform({C}), bias = uniform({C}), out = f32({R, C}), mean = f32({R}), rstd = f32({R});
                     return prepared(LayerNormForward{.x = x, .weight = weight, .bias = bias, .eps = 1e-6, .out = out, .mean = mean, .rstd = rstd},
                                     {x, weight, bias, out, mean, rstd});
                   }});
  cases.push_back({"norm/layer_norm_backward/" + size, [=] {
                     const Tensor grad = uniform({R, C}), x = uniform({R, C}), weight = uniform({C}), mean = uniform({R}), rstd = uniform({R});
                     const Tensor out = f32({R, C}), grad_weight = f32({C}), grad_bias = f32({C}), scratch = f32({LayerNormBackward::num_scratch(R, C)});
                     return prepared(LayerNormBackward{.grad_out = grad, .x = x, .mean = mean, .rstd = rstd, .weight = weight, .out = out,
                                                       .grad_weight = grad_weight, .grad_bias = grad_bias, .scratch = scratch},
                                     {grad, x, weight, mean, rstd, out, grad_weight, grad_bias, scratch});
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
                     const Tensor grad = full({}, 1, DType::f32), logits = uniform({R, V}), targets = indices({R}, V), out = f32({R, V});
                     const Tensor statistics = full({R, 2}, 1, DType::f32);
                     return prepared(CrossEntropyBackward{.grad_out = grad, .logits = logits, .targets = targets, .statistics = statistics, .ignore_index = -100,
                                                          .label_smoothing = 0, .reduction = Reduction::mean, .scale = 1, .out = out},
                                     {grad, logits, targets, out, statistics});
                   }});
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> cases;
  add_layer_norm(cases, "vit_s", 1576, 384);
  add_layer_norm(cases, "small", 1088, 64);
  cases.push_back({"softmax/softmax/9456x197", [] {
                     const Tensor x = uniform({9456, 197}), out = f32({9456, 197});
                     return prepared(SoftmaxForward{.x = x, .dim = 1, .is_log = false, .out = out}, {x, out});
                   }});
  cases.push_back({"softmax/softmax_backward/9456x197", [] {
                     const Tensor y = uniform({9456, 197}), grad = uniform({9456, 197}), out = f32({9456, 197});
                     return prepared(SoftmaxBackward{.y = y, .grad_out = grad, .dim = 1, .is_log = false, .out = out}, {y, grad, out});
                   }});
  add_cross_entropy(cases, "64x10", 64, 10);
  add_cross_entropy(cases, "1024x50257", 1024, 50257);
  cases.push_back({"embedding/embedding/gpt2", [] {
                     const Tensor weight = uniform({50257, 768}), at = indices({1024}, 50257), out = f32({1024, 768});
                     return prepared(EmbeddingForward{.indices = at, .weight = weight, .out = out}, {weight, at, out});
                   }});
  cases.push_back({"embedding/embedding_backward/gpt2", [] {
                     const Tensor grad = uniform({1024, 768}), at = indices({1024}, 50257), out = f32({50257, 768});
                     return prepared(EmbeddingBackward{.grad_out = grad, .indices = at, .padding_idx = -1, .out = out}, {grad, at, out});
                   }});
  return cases;
}

}  // namespace refrain::bench
