// Stochastic gradient descent. Without momentum it keeps no state at all.
#pragma once

#include <refrain/optim/optimizer.h>

namespace refrain {

struct SgdOptions {
  double momentum = 0;    // 0 … 1; 0 keeps no buffer
  bool nesterov = false;  // needs momentum
};

// g = grad + weight_decay · p;  without momentum p -= lr · g, else m = momentum · m + g and p -= lr · m, or with Nesterov
// p -= lr · (g + momentum · m) (Sutskever et al. 2013, as PyTorch writes it). The state is `momentum_buffer`.
class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options = {}, const UpdateOptions& update = {});

 protected:
  void update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) override;
  void update_all(const std::vector<Update>& updates, double grad_scale) override;

 private:
  SgdUpdate kernel_of(const Slot& slot, const Tensor& grad, double lr, double grad_scale) const;

  SgdOptions options_;
};

}  // namespace refrain
