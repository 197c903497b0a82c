#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/optim/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace refrain {

namespace {

// The sums of squares of `grads`, all in one kernel but for those that must be copied first, a copy at a time.
void measure(const std::vector<Tensor>& grads, const Tensor& sums) {
  const Device& device = sums.device();
  std::vector<In> all, run;
  std::int64_t most_scratch = 0;
  for (const Tensor& grad : grads) {
    if (grad.is_contiguous())
      all.push_back(grad);
    else
      most_scratch = std::max(most_scratch, squared_norm_scratch_numel(grad.numel()));
  }
  if (!all.empty()) most_scratch = std::max(most_scratch, squared_norms_scratch_numel(all, device.target()));
  const Tensor scratch = empty({most_scratch}, DType::f64, device);
  const auto scratch_of = [&](std::int64_t numel) { return view::slice(scratch, 0, 0, numel); };
  const auto end_run = [&](std::size_t end) {
    if (run.empty()) return;
    launch(SquaredNorms{.x = run, .out = view::slice(sums, 0, std::int64_t(end - run.size()), std::int64_t(end)),
                        .scratch = scratch_of(squared_norms_scratch_numel(run, device.target()))});
    run.clear();
  };
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].is_contiguous()) {
      run.push_back(grads[i]);
      continue;
    }
    end_run(i);
    launch(SquaredNorm{.x = contiguous_values(grads[i]), .out = view::select(sums, 0, std::int64_t(i)),
                       .scratch = scratch_of(squared_norm_scratch_numel(grads[i].numel()))});
  }
  end_run(grads.size());
}

}  // namespace

GradNorm grad_norm(std::span<const Tensor> parameters) {
  std::vector<Tensor> grads;
  std::vector<std::int64_t> indices;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor grad = grad_of(parameters[i]);
    if (!grad.defined()) continue;
    grads.push_back(grad);
    indices.push_back(std::int64_t(i));
  }
  if (grads.empty()) return {};
  const PhaseScope phase(Phase::update);
  const KindScope kind(MemoryKind::workspace);
  const Tensor sums = empty({std::int64_t(grads.size())}, DType::f64, grads[0].device());
  measure(grads, sums);
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
