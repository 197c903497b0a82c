#include <refrain/autograd/ops/reduce.h>
#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/optim/fused_update.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace refrain {

GradMeasure::GradMeasure(const Optimizer& optimizer)
    : parameters_(optimizer.parameters()),
      squares_(parameters_.size(), 0),
      is_deferred_(!parameters_.empty() && parameters_.front().device().target() == DeviceKind::cuda) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_of_.emplace(parameters_[i].autograd_slot().get(), std::int64_t(i));
}

BackwardOptions GradMeasure::options() {
  BackwardOptions options;
  options.leaves = parameters_;
  options.on_final = [this](const Tensor& parameter, bool has_grad) {
    if (!has_grad) return;
    look_at(parameter);
    clear_grad(parameter);
  };
  return options;
}

std::int64_t GradMeasure::look_at(const Tensor& parameter) {
  const std::int64_t index = index_of_.at(parameter.autograd_slot().get());
  const PhaseScope phase(Phase::update);
  const Tensor grad = grad_of(parameter);
  if (!is_deferred_) {
    const Tensor sum = squared_norm(grad);
    squares_[std::size_t(index)] = sum.has_bytes() ? sum.item() : 0;
    return index;
  }
  const KindScope kind(MemoryKind::workspace);
  const Tensor scratch = empty({squared_norm_scratch_numel(grad.numel())}, DType::f64, grad.device());
  launch(SquaredNorm{.x = contiguous_values(grad), .out = view::select(sums(), 0, index), .scratch = scratch, .guard = guard()});
  return index;
}

const Tensor& GradMeasure::sums() {
  if (!sums_.defined()) {
    const PhaseScope phase(Phase::update);
    const KindScope kind(MemoryKind::workspace);
    sums_ = zeros({std::int64_t(parameters_.size()) + 1}, DType::f64, parameters_.front().device());
  }
  return sums_;
}

Tensor GradMeasure::guard() { return is_deferred_ ? view::select(sums(), 0, std::int64_t(parameters_.size())) : Tensor(); }

void GradMeasure::read() {
  if (!sums_.defined()) return;
  if (sums_.has_bytes()) {
    const std::vector<double> values = sums_.to_vector<double>();
    std::copy_n(values.begin(), squares_.size(), squares_.begin());
  }
  sums_ = Tensor();
}

GradNorm GradMeasure::norm() {
  read();
  GradNorm result;
  double total = 0;
  for (std::size_t i = 0; i < squares_.size(); ++i) {
    total += squares_[i];
    if (!std::isfinite(squares_[i]) && result.is_finite()) result.first_non_finite = std::int64_t(i);
  }
  result.norm = std::sqrt(total);
  return result;
}

FusedUpdate::FusedUpdate(Optimizer& optimizer, double lr, double grad_scale, bool stops_at_non_finite)
    : optimizer_(optimizer), lr_(lr), grad_scale_(grad_scale), stops_at_non_finite_(stops_at_non_finite), measure_(optimizer) {}

BackwardOptions FusedUpdate::options() {
  optimizer_.begin_step(lr_, grad_scale_, stops_at_non_finite_ ? measure_.guard() : Tensor());
  BackwardOptions options;
  options.leaves = measure_.parameters();
  options.on_final = [this](const Tensor& parameter, bool has_grad) {
    if (has_grad) take(parameter);
    update_ready();
  };
  return options;
}

void FusedUpdate::take(const Tensor& parameter) {
  const std::int64_t index = measure_.look_at(parameter);
  const Look look{index, thread_context().op, thread_context().module, updates_.size()};
  if (measure_.is_deferred())
    looks_.push_back(look);
  else
    judge(look);
  waiting_.push_back(index);
}

void FusedUpdate::judge(const Look& look) {
  if (first_non_finite_ >= 0 || std::isfinite(measure_.square(look.index))) return;
  if (stops_at_non_finite_) {
    for (std::size_t i = look.num_updates; i < updates_.size(); ++i) optimizer_.discount_update(updates_[i]);
    // One that other ranks have a part in is completed by no op.
    const std::string where = look.op.empty() || look.op == "backward" ? "" : concat(", completed by ", look.op, " in module '", look.module->text, "'");
    fail<NonFinite>("the gradient of parameter '", optimizer_.parameter_name(look.index), "' is not finite", where,
                    "; parameters whose gradients came before it are updated already");
  }
  first_non_finite_ = look.index;
}

void FusedUpdate::update_ready() {
  std::erase_if(waiting_, [this](std::int64_t index) {
    const Tensor& parameter = measure_.parameters()[std::size_t(index)];
    if (parameter.storage()->num_saved() > 0) return false;
    optimizer_.update_parameter(index, lr_, grad_scale_);
    updates_.push_back(index);
    clear_grad(parameter);
    return true;
  });
}

double FusedUpdate::finish() {
  update_ready();
  invariant(waiting_.empty(), "a parameter is still read after its backward");
  measure_.read();
  for (const Look& look : std::exchange(looks_, {})) judge(look);
  optimizer_.end_step();
  return measure_.norm().norm * grad_scale_;
}

}  // namespace refrain
