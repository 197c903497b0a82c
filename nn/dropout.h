// Layers that leave out parts at random in training mode and do nothing in evaluation mode.
#pragma once

#include <refrain/nn/module.h>

namespace refrain {

// Zeroes each element with probability p and scales the rest by 1 / (1 - p). Srivastava et al., "Dropout", 2014.
class Dropout : public Module {
 public:
  // Throws InvalidArgument unless 0 <= p < 1.
  explicit Dropout(double p);
  // Any shape whose dim 0 is the batch → the same shape
  Tensor operator()(const Tensor& x) const;
  double p() const { return p_; }

 private:
  double p_;
};

// Zeroes whole samples (dim 0) with probability p and scales the rest by 1 / (1 - p): a residual branch is skipped.
// Huang et al., "Deep networks with stochastic depth", 2016.
class StochasticDepth : public Module {
 public:
  // Throws InvalidArgument unless 0 <= p < 1.
  explicit StochasticDepth(double p);
  // [B, ...] → [B, ...]
  Tensor operator()(const Tensor& x) const;
  double p() const { return p_; }

 private:
  double p_;
};

}  // namespace refrain
