#include <refrain/bench/ops/cases.h>
#include <refrain/kernels/attention/attention.h>

namespace refrain::bench {

namespace {

struct Size {
  std::string name;
  std::int64_t B, T, H, D;
  bool causal;
};

Prepared forward(const Size& s) {
  const Shape shape{s.B, s.T, s.H, s.D};
  const Tensor q = uniform(shape), k = uniform(shape), v = uniform(shape), out = space(shape), lse = space({s.B, s.H, s.T}, DType::f32);
  return prepared(AttentionForward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = default_attention_scale(s.D), .out = out, .lse = lse}, {q, k, v, out, lse});
}

Prepared backward(const Size& s) {
  const Shape shape{s.B, s.T, s.H, s.D};
  const Tensor q = uniform(shape), k = uniform(shape), v = uniform(shape), grad = uniform(shape), out = space(shape), lse = space({s.B, s.H, s.T}, DType::f32);
  const double scale = default_attention_scale(s.D);
  launch(AttentionForward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = scale, .out = out, .lse = lse});
  const Tensor grad_q = space(shape), grad_k = space(shape), grad_v = space(shape);
  const Tensor scratch = scratch_space(AttentionBackward::num_scratch(setting().device.target(), s.B, s.H, s.T), DType::f32);
  return prepared(AttentionBackward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = scale, .attended = out, .lse = lse, .grad_out = grad, .out = grad_q,
                                    .grad_k = grad_k, .grad_v = grad_v, .scratch = scratch},
                  {q, k, v, out, lse, grad, grad_q, grad_k, grad_v, scratch});
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Size> sizes = {{"vit_s", 8, 197, 6, 64, false}, {"small", 64, 17, 4, 16, false}, {"gpt2", 1, 1024, 12, 64, true}};
  if (setting().is_large()) sizes = {{"vit_l b64", 64, 197, 16, 64, false}, {"gpt2 b32", 32, 1024, 12, 64, true}, {"4k d128", 4, 4096, 16, 128, true}};
  std::vector<Case> cases;
  for (const Size& s : sizes) {
    cases.push_back({"attention/forward/" + s.name, [s] { return forward(s); }});
    cases.push_back({"attention/backward/" + s.name, [s] { return backward(s); }});
  }
  return cases;
}

}  // namespace refrain::bench
