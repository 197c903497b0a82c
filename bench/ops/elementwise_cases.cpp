#include <refrain/bench/ops/cases.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/update/update.h>

namespace refrain::bench {

namespace {

// The hidden activations of ViT-S/16 at batch 8 and of the small ViT; for a GPU of ViT-L/16 at batch 64.
std::vector<std::pair<std::string, Shape>> sizes() {
  if (setting().is_large()) return {{"vit_l b64", {12608, 4096}}};
  return {{"vit_s", {1576, 1536}}, {"small", {1088, 128}}};
}

Prepared unary(UnaryOp op, const Shape& shape) {
  const Tensor x = uniform(shape), out = space(shape);
  return prepared(Unary{.op = op, .x = x, .out = out}, {x, out});
}

Prepared unary_backward(UnaryOp op, const Shape& shape) {
  const Tensor grad = uniform(shape), value = uniform(shape), out = space(shape);
  return prepared(UnaryBackward{.op = op, .grad_out = grad, .value = value, .out = out}, {grad, value, out});
}

Prepared add(const Shape& shape, const Shape& other) {
  const Tensor a = uniform(shape), b = uniform(other), out = space(shape);
  return prepared(Binary{.op = BinaryOp::add, .a = a, .b = b, .out = out}, {a, b, out});
}

Prepared sum(const Shape& shape, const Shape& to) {
  const Tensor x = uniform(shape), out = space(to), scratch = scratch_space(sum_scratch_numel(shape, to), accumulator_dtype(setting().dtype));
  return prepared(Sum{.x = x, .out = out, .scratch = scratch}, {x, out, scratch});
}

Prepared dropout(const Shape& shape) {
  const Tensor x = uniform(shape), out = space(shape);
  return prepared(Dropout{.x = x, .p = 0.1, .key = {.seed = 1}, .first_element = 0, .out = out}, {x, out});
}

Prepared transpose(const Shape& shape) {
  const Tensor x = uniform(shape), out = space({shape[1], shape[0]});
  return prepared(Convert{.x = view::transpose(x, 0, 1), .out = out}, {x, out});
}

Prepared sgd(std::int64_t count) {
  const Tensor grad = uniform({count}, DType::f32), out = uniform({count}, DType::f32);
  return prepared(SgdUpdate{.grad = grad, .lr = 1e-3, .weight_decay = 0, .momentum = 0, .grad_scale = 1, .nesterov = false, .out = out, .momentum_buffer = {}}, {grad, out});
}

Prepared adamw(std::int64_t count) {
  const Device& device = setting().device;
  const Tensor grad = uniform({count}, DType::f32), out = uniform({count}, DType::f32);
  const Tensor mean = zeros({count}, DType::f32, device), square = zeros({count}, DType::f32, device);
  return prepared(AdamUpdate{.grad = grad, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.05, .grad_scale = 1, .is_decoupled = true,
                             .step = 10, .out = out, .mean = mean, .square = square},
                  {grad, out, mean, square});
}

}  // namespace

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  for (const auto& size : sizes()) {
    const Shape shape = size.second;
    for (UnaryOp op : {UnaryOp::gelu_erf, UnaryOp::gelu_tanh, UnaryOp::relu, UnaryOp::tanh, UnaryOp::exp}) {
      const std::string name(name_of(op));
      cases.push_back({"elementwise/" + name + "/" + size.first, [=] { return unary(op, shape); }});
      cases.push_back({"elementwise/" + name + " backward/" + size.first, [=] { return unary_backward(op, shape); }});
    }
    cases.push_back({"elementwise/add/" + size.first, [=] { return add(shape, shape); }});
    cases.push_back({"elementwise/add row/" + size.first, [=] { return add(shape, {shape[1]}); }});
    cases.push_back({"reduce/sum all/" + size.first, [=] { return sum(shape, {}); }});
    cases.push_back({"reduce/sum rows/" + size.first, [=] { return sum(shape, {shape[1]}); }});
    cases.push_back({"dropout/dropout/" + size.first, [=] { return dropout(shape); }});
    cases.push_back({"convert/transpose/" + size.first, [=] { return transpose(shape); }});
  }
  cases.push_back({"update/sgd/22M", [] { return sgd(22'000'000); }});
  cases.push_back({"update/adamw/22M", [] { return adamw(22'000'000); }});
  return cases;
}

}  // namespace refrain::bench
