// The loss of a classifier or language model as a module, with its options.
#pragma once

#include <refrain/autograd/ops/loss.h>
#include <refrain/nn/module.h>

namespace refrain {

class CrossEntropyLoss : public Module {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {}) : options_(options) {}
  // logits [..., V], i64 targets [...] → scalar, or [...] with Reduction::none
  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    const ModuleScope scope = enter();
    return cross_entropy(logits, targets, options_);
  }

 private:
  CrossEntropyOptions options_;
};

}  // namespace refrain
