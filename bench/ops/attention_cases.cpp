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
  const Tensor q = uniform(shape), k = uniform(shape), v = uniform(shape), out = empty(shape, DType::f32), lse = empty({s.B, s.H, s.T}, DType::f32);
  return prepared(AttentionForward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = default_attention_scale(s.D), .out = out, .lse = lse}, {q, k, v, out, lse});
}

Prepared backward(const Size& s) {
  const Shape shape{s.B, s.T, s.H, s.D};
  const Tensor q = uniform(shape), k = uniform(shape), v = uniform(shape), grad = uniform(shape), out = empty(shape, DType::f32), lse = empty({s.B, s.H, s.T}, DType::f32);
  const double scale = default_attention_scale(s.D);
  launch(AttentionForward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = scale, .out = out, .lse = lse});
  const Tensor grad_q = empty(shape, DType::f32), grad_k = empty(shape, DType::f32), grad_v = empty(shape, DType::f32);
  return prepared(AttentionBackward{.q = q, .k = k, .v = v, .causal = s.causal, .scale = scale, .attended = out, .lse = lse, .grad_out = grad, .out = grad_q,
                                    .grad_k = grad_k, .grad_v = grad_v},
                  {q, k, v, out, lse, grad, grad_q, grad_k, grad_v});
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  for (const Size& s : {Size{"vit_s", 8, 197, 6, 64, false}, Size{"small", 64, 17, 4, 16, false}, Size{"gpt2", 1, 1024, 12, 64, true}}) {
    cases.push_back({"attention/forward/" + s.name, [s] { return forward(s); }});
    cases.push_back({"attention/backward/" + s.name, [s] { return backward(s); }});
  }
  return cases;
}

}  // namespace refrain::bench
