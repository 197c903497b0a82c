#include <refrain/bench/ops/cases.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain::bench {

namespace {

struct Layer {
  std::string name;
  std::int64_t rows, in, out;
};

// ViT-S/16 at batch 8, GPT-2 at 1024 tokens, and the small ViT on 28 x 28 images.
const std::vector<Layer>& layers() {
  static const std::vector<Layer> list = {
      {"vit_s_qkv", 1576, 384, 1152}, {"vit_s_proj", 1576, 384, 384},  {"vit_s_fc1", 1576, 384, 1536}, {"vit_s_fc2", 1576, 1536, 384},
      {"gpt2_fc1", 1024, 768, 3072},  {"gpt2_fc2", 1024, 3072, 768},   {"small_qkv", 1088, 64, 192},   {"small_proj", 1088, 64, 64},
      {"small_fc1", 1088, 64, 128},   {"small_fc2", 1088, 128, 64},    {"head", 64, 64, 10}};
  return list;
}

// What a product runs in, and by whom.
struct Mode {
  std::string suffix;
  DType dtype = DType::f32;
  GemmEngine engine = GemmEngine::automatic;
};

// f32 as it is chosen; 16 bits so, and by widening alone as where the processor has no instructions for them.
const std::vector<Mode>& modes() {
  static const std::vector<Mode> list = {
      {"", DType::f32, GemmEngine::automatic}, {"/bf16", DType::bf16, GemmEngine::automatic}, {"/f16", DType::f16, GemmEngine::automatic},
      {"/bf16_builtin", DType::bf16, GemmEngine::builtin}, {"/f16_builtin", DType::f16, GemmEngine::builtin}};
  return list;
}

Tensor uniform_as(const Shape& shape, DType dtype) {
  const Tensor values = uniform(shape);
  if (dtype == DType::f32) return values;
  const Tensor out = empty(shape, dtype);
  launch(Convert{.x = values, .out = out});
  return out;
}

Prepared forward(const Layer& l, const Mode& m) {
  const Tensor x = uniform_as({l.rows, l.in}, m.dtype), weight = uniform_as({l.out, l.in}, m.dtype), bias = uniform({l.out});
  const Tensor out = empty({l.rows, l.out}, m.dtype);
  return prepared(LinearForward{.x = x, .weight = weight, .bias = bias, .out = out, .pre_activation = {}, .engine = m.engine}, {x, weight, bias, out});
}

Prepared backward_input(const Layer& l, const Mode& m) {
  const Tensor grad = uniform_as({l.rows, l.out}, m.dtype), weight = uniform_as({l.out, l.in}, m.dtype), out = empty({l.rows, l.in}, m.dtype);
  return prepared(LinearBackwardInput{.grad_out = grad, .weight = weight, .out = out, .engine = m.engine}, {grad, weight, out});
}

// Into f32, as in a mixed mode.
Prepared backward_weight(const Layer& l, const Mode& m) {
  const Tensor grad = uniform_as({l.rows, l.out}, m.dtype), x = uniform_as({l.rows, l.in}, m.dtype);
  const Tensor out = empty({l.out, l.in}, DType::f32), bias = empty({l.out}, DType::f32);
  const Tensor scratch = empty({LinearBackwardWeight::scratch_size(l.rows, l.out, l.in, DType::f32)}, DType::f32);
  return prepared(LinearBackwardWeight{.grad_out = grad, .x = x, .out = out, .grad_bias = bias, .scratch = scratch, .engine = m.engine},
                  {grad, x, out, bias, scratch});
}

Prepared batched(std::int64_t batch, std::int64_t m, std::int64_t k, std::int64_t n) {
  const Tensor a = uniform({batch, m, k}), b = uniform({batch, n, k}), out = empty({batch, m, n}, DType::f32);
  return prepared(Matmul{.a = a, .b = view::transpose(b, 1, 2), .out = out}, {a, b, out});
}

}  // namespace

std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (const Layer& l : layers()) {
    for (const Mode& m : modes()) cases.push_back({"matmul/linear/" + l.name + m.suffix, [l, m] { return forward(l, m); }});
    for (const Mode& m : modes()) cases.push_back({"matmul/linear_backward_input/" + l.name + m.suffix, [l, m] { return backward_input(l, m); }});
    for (const Mode& m : modes()) cases.push_back({"matmul/linear_backward_weight/" + l.name + m.suffix, [l, m] { return backward_weight(l, m); }});
  }
  cases.push_back({"matmul/batched/256x17x16x17", [] { return batched(256, 17, 16, 17); }});
  cases.push_back({"matmul/batched/48x197x64x197", [] { return batched(48, 197, 64, 197); }});
  return cases;
}

}  // namespace refrain::bench
