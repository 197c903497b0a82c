#include <refrain/autograd/ops/reduce.h>
#include <refrain/optim/fused_update.h>

#include <cmath>

namespace refrain {

GradMeasure::GradMeasure(const Optimizer& optimizer) : parameters_(optimizer.parameters()), squares_(parameters_.size(), 0) {
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
  const Tensor sum = squared_norm(grad_of(parameter));
  squares_[std::size_t(index)] = sum.has_bytes() ? sum.item() : 0;
  return index;
}

GradNorm GradMeasure::norm() const {
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
  optimizer_.begin_step(lr_, grad_scale_);
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
  if (!std::isfinite(measure_.square(index))) {
    check<NonFinite>(!stops_at_non_finite_, "the gradient of parameter '", optimizer_.parameter_name(index), "' is not finite, completed by ",
                     thread_context().op, " in module '", thread_context().module->text,
                     "'; parameters whose gradients came before it are updated already");
    if (first_non_finite_ < 0) first_non_finite_ = index;
  }
  waiting_.push_back(index);
}

void FusedUpdate::update_ready() {
  std::erase_if(waiting_, [this](std::int64_t index) {
    const Tensor& parameter = measure_.parameters()[std::size_t(index)];
    if (parameter.storage()->num_saved() > 0) return false;
    optimizer_.update_parameter(index, lr_, grad_scale_);
    clear_grad(parameter);
    return true;
  });
}

double FusedUpdate::finish() {
  update_ready();
  invariant(waiting_.empty(), "a parameter is still read after its backward");
  optimizer_.end_step();
  return measure_.norm().norm * grad_scale_;
}

}  // namespace refrain
