// The tape: records of the ops that ran on this thread, in time order. backward() walks it in reverse and releases
// each record as it goes. A record lives as long as one of its outputs, or a later record, may need it.
#pragma once

#include <refrain/core/tensor.h>

#include <functional>
#include <vector>

namespace refrain {

// Makes t a leaf that wants a gradient (or not). Throws InvalidArgument for integer tensors and for results of ops.
void set_requires_grad(const Tensor& t, bool requires_grad = true);
bool is_leaf(const Tensor& t);

// Gradient of a leaf; undefined when it has none.
Tensor grad_of(const Tensor& leaf);
// Replaces a leaf's gradient. Throws InvalidArgument when shape or dtype differ.
void set_grad(const Tensor& leaf, const Tensor& grad);
void clear_grad(const Tensor& leaf);

// The same values, unknown to the tape. Shares bytes.
Tensor detach(const Tensor& t);

bool is_grad_enabled();

// Ops in this scope leave no records.
class NoGradScope {
 public:
  NoGradScope();
  ~NoGradScope();
  NoGradScope(const NoGradScope&) = delete;
  NoGradScope& operator=(const NoGradScope&) = delete;

 private:
  bool old_;
};

struct BackwardOptions {
  // Gradient of the output; needed unless it has one element (then 1).
  Tensor grad_out = {};
  // Keep the records, so that backward can be called again.
  bool retain = false;
  // Whether this is the last backward of an update: only then are gradients final.
  bool is_last = true;
  // Leaves whose final gradients are announced, each exactly once, the moment no contribution is outstanding; a leaf
  // that the output does not depend on is announced at the start with has_grad = false (unless it already has one).
  std::vector<Tensor> leaves = {};
  // Leaves whose gradients are not final although this is the last backward for others.
  std::vector<Tensor> unfinished = {};
  std::function<void(const Tensor& leaf, bool has_grad)> on_final = {};
};

// Adds d(output)/d(leaf) to the gradient of every leaf that output depends on. Throws InvalidArgument, before anything
// is changed, when output does not depend on a leaf that wants a gradient, is no scalar and grad_out is missing, or
// was already gone through by a backward that did not retain.
void backward(const Tensor& output, const BackwardOptions& options);
// The same; lets go of options.grad_out as soon as it was read.
void backward(const Tensor& output, BackwardOptions&& options = {});

// Records of the calling thread that are alive.
std::int64_t tape_size();

}  // namespace refrain
