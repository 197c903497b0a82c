#include <refrain/nn/linear.h>

#include <refrain/autograd/ops/linear.h>

namespace refrain {

Linear::Linear(std::int64_t num_in, std::int64_t num_out, const LinearOptions& options) {
  check(num_in > 0 && num_out > 0, "Linear: expected positive sizes, got ", num_in, " → ", num_out);
  const double bound = 1 / std::sqrt(double(num_in));
  add_parameter("weight", weight, {num_out, num_in}, options.weight_init);
  if (options.bias) add_parameter("bias", bias, {num_out}, options.bias_init.value_or(Init::uniform(-bound, bound)));
}

Tensor Linear::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  return linear(x, weight, bias);
}

}  // namespace refrain
