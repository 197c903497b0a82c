#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/optim/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace refrain {

GradNorm grad_norm(std::span<const Tensor> parameters) {
  std::vector<Tensor> grads;
  std::vector<std::int64_t> indices;
  std::int64_t most_scratch = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor grad = grad_of(parameters[i]);
    if (!grad.defined()) continue;
    grads.push_back(grad);
    indices.push_back(std::int64_t(i));
    most_scratch = std::max(most_scratch, squared_norm_scratch_numel(grad.numel()));
  }
  if (grads.empty()) return {};
  const PhaseScope phase(Phase::update);
  const KindScope kind(MemoryKind::workspace);
  const Device& device = grads[0].device();
  const Tensor sums = empty({std::int64_t(grads.size())}, DType::f64, device), scratch = empty({most_scratch}, DType::f64, device);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    launch(SquaredNorm{.x = contiguous_values(grads[i]), .out = view::select(sums, 0, std::int64_t(i)),
                       .scratch = view::slice(scratch, 0, 0, squared_norm_scratch_numel(grads[i].numel()))});
  }
  if (!sums.has_bytes()) return {};
  GradNorm result;
  double total = 0;
  const std::vector<double> values = sums.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    total += values[i];
    if (!std::isfinite(values[i]) && result.is_finite()) result.first_non_finite = indices[i];
  }
  result.norm = std::sqrt(total);
  return result;
}

double global_grad_norm(std::span<const Tensor> parameters) { return grad_norm(parameters).norm; }

double clip_factor(double norm, double max_norm) {
  check(max_norm > 0, "clip_factor: max_norm must be positive, got ", max_norm);
  check<NonFinite>(std::isfinite(norm), "clip_factor: the gradients' norm is ", norm);
  return norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace refrain
