// Adam (Kingma, Ba 2015) with weight decay as part of the gradient, and AdamW (Loshchilov, Hutter 2019) with weight decay
// beside it. Both keep two numbers a parameter, `mean` and `square`, from construction on.
#pragma once

#include <refrain/optim/optimizer.h>

namespace refrain {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999;  // [0, 1)
  double eps = 1e-8;
};

class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<ParameterGroup> groups, const AdamOptions& options = {}, const UpdateOptions& update = {})
      : Adam(std::move(groups), options, update, false) {}

 protected:
  Adam(std::vector<ParameterGroup> groups, const AdamOptions& options, const UpdateOptions& update, bool is_decoupled);
  void update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) override;
  void update_all(const std::vector<Update>& updates, double grad_scale) override;

 private:
  AdamUpdate kernel_of(const Slot& slot, const Tensor& grad, double lr, double grad_scale) const;

  AdamOptions options_;
  bool is_decoupled_;
};

class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamOptions& options = {}, const UpdateOptions& update = {})
      : Adam(std::move(groups), options, update, true) {}
};

}  // namespace refrain
