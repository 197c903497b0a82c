#include <refrain/bench/ops/cases.h>
#include <refrain/core/view.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain::bench {

namespace {

struct Layer {
  std::string name;
  std::int64_t rows, in, out;
};

// ViT-S/16 at batch 8, GPT-2 at 1024 tokens, and the small ViT on 28 x 28 images; for a GPU ViT-L/16 at batch 64 and GPT-2
// at 32 x 1024 tokens.
std::vector<Layer> layers() {
  if (setting().is_large()) {
    return {{"vit_l_qkv", 12608, 1024, 3072}, {"vit_l_fc1", 12608, 1024, 4096}, {"vit_l_fc2", 12608, 4096, 1024}, {"gpt2_fc1", 32768, 768, 3072}};
  }
  return {
      {"vit_s_qkv", 1576, 384, 1152}, {"vit_s_proj", 1576, 384, 384},  {"vit_s_fc1", 1576, 384, 1536}, {"vit_s_fc2", 1576, 1536, 384},
      {"gpt2_fc1", 1024, 768, 3072},  {"gpt2_fc2", 1024, 3072, 768},   {"small_qkv", 1088, 64, 192},   {"small_proj", 1088, 64, 64},
      {"small_fc1", 1088, 64, 128},   {"small_fc2", 1088, 128, 64},    {"head", 64, 64, 10}};
}

// What a product runs in, and by whom.
struct Mode {
  std::string suffix;
  DType dtype = DType::f32;
  GemmEngine engine = GemmEngine::automatic;
};

// f32 as it is chosen; 16 bits so, and by widening alone as where the processor has no instructions for them.
// On a GPU the setting's dtype, by cuBLASLt where it can and by our own kernel.
std::vector<Mode> modes() {
  const DType own = setting().dtype;
  if (setting().is_large()) return {{"", own, GemmEngine::automatic}, {"/builtin", own, GemmEngine::builtin}};
  return {
      {"", DType::f32, GemmEngine::automatic}, {"/bf16", DType::bf16, GemmEngine::automatic}, {"/f16", DType::f16, GemmEngine::automatic},
      {"/bf16_builtin", DType::bf16, GemmEngine::builtin}, {"/f16_builtin", DType::f16, GemmEngine::builtin}};
}

Tensor workspace_for(std::int64_t m, std::int64_t n, std::int64_t k) {
  return scratch_space(product_workspace_bytes(setting().device.target(), m, n, k), DType::u8);
}

Prepared forward(const Layer& l, const Mode& m) {
  const Tensor x = uniform({l.rows, l.in}, m.dtype), weight = uniform({l.out, l.in}, m.dtype), bias = uniform({l.out}, DType::f32);
  const Tensor out = space({l.rows, l.out}, m.dtype), workspace = workspace_for(l.rows, l.out, l.in);
  return prepared(LinearForward{.x = x, .weight = weight, .bias = bias, .out = out, .pre_activation = {}, .workspace = workspace, .engine = m.engine},
                  {x, weight, bias, out, workspace});
}

Prepared backward_input(const Layer& l, const Mode& m) {
  const Tensor grad = uniform({l.rows, l.out}, m.dtype), weight = uniform({l.out, l.in}, m.dtype), out = space({l.rows, l.in}, m.dtype);
  const Tensor workspace = workspace_for(l.rows, l.in, l.out);
  return prepared(LinearBackwardInput{.grad_out = grad, .weight = weight, .out = out, .workspace = workspace, .engine = m.engine},
                  {grad, weight, out, workspace});
}

// Into f32, as in a mixed mode.
Prepared backward_weight(const Layer& l, const Mode& m) {
  const Tensor grad = uniform({l.rows, l.out}, m.dtype), x = uniform({l.rows, l.in}, m.dtype);
  const Tensor out = space({l.out, l.in}, DType::f32), bias = space({l.out}, DType::f32), workspace = workspace_for(l.out, l.in, l.rows);
  const Tensor scratch = scratch_space(LinearBackwardWeight::scratch_size(setting().device.target(), l.rows, l.out, l.in, DType::f32), DType::f32);
  return prepared(LinearBackwardWeight{.grad_out = grad, .x = x, .out = out, .grad_bias = bias, .scratch = scratch, .workspace = workspace, .engine = m.engine},
                  {grad, x, out, bias, scratch, workspace});
}

Prepared batched(std::int64_t batch, std::int64_t m, std::int64_t k, std::int64_t n) {
  const Tensor a = uniform({batch, m, k}), b = uniform({batch, n, k}), out = space({batch, m, n}), workspace = workspace_for(m, n, k);
  return prepared(Matmul{.a = a, .b = view::transpose(b, 1, 2), .out = out, .workspace = workspace}, {a, b, out, workspace});
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
