#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/unary_rule.h>

namespace refrain {

Tensor gelu(const Tensor& x, GeluForm form) {
  return form == GeluForm::erf ? apply<SavesInput<UnaryOp::gelu_erf>>(x) : apply<SavesInput<UnaryOp::gelu_tanh>>(x);
}
Tensor silu(const Tensor& x) { return apply<SavesInput<UnaryOp::silu>>(x); }
Tensor relu(const Tensor& x) { return apply<SavesOutput<UnaryOp::relu>>(x); }
Tensor tanh(const Tensor& x) { return apply<SavesOutput<UnaryOp::tanh>>(x); }
Tensor sigmoid(const Tensor& x) { return apply<SavesOutput<UnaryOp::sigmoid>>(x); }

}  // namespace refrain
