#include <refrain/nn/dropout.h>

#include <refrain/autograd/ops/dropout.h>

namespace refrain {

Dropout::Dropout(double p) : p_(p) { check(p >= 0 && p < 1, "Dropout: expected a probability in [0, 1), got ", p); }

Tensor Dropout::operator()(const Tensor& x) const {
  if (!is_training() || p_ == 0) return x;
  const ModuleScope scope = enter();
  return dropout(x, p_);
}

StochasticDepth::StochasticDepth(double p) : p_(p) {
  check(p >= 0 && p < 1, "StochasticDepth: expected a probability in [0, 1), got ", p);
}

Tensor StochasticDepth::operator()(const Tensor& x) const {
  if (!is_training() || p_ == 0) return x;
  const ModuleScope scope = enter();
  return stochastic_depth(x, p_);
}

}  // namespace refrain
