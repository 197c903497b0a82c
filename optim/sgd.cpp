#include <refrain/kernels/update/update.h>
#include <refrain/optim/sgd.h>

namespace refrain {

Sgd::Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options, const UpdateOptions& update)
    : Optimizer(std::move(groups), options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}, update),
      options_(options) {
  check(options.momentum >= 0 && options.momentum < 1, "sgd: momentum must be in [0, 1), got ", options.momentum);
  check(!options.nesterov || options.momentum != 0, "sgd: nesterov needs momentum");
}

SgdUpdate Sgd::kernel_of(const Slot& slot, const Tensor& grad, double lr, double grad_scale) const {
  return SgdUpdate{.grad = grad, .lr = lr, .weight_decay = slot.weight_decay, .momentum = options_.momentum, .grad_scale = grad_scale,
                   .nesterov = options_.nesterov, .out = slot.parameter, .momentum_buffer = slot.state.empty() ? Tensor() : slot.state[0],
                   .master = slot.master, .num_lost = lost_counter(slot), .num_non_finite = non_finite_counter(slot),
                   .rounding = rounding_of(slot), .guard = guard()};
}

void Sgd::update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) { launch(kernel_of(slot, grad, lr, grad_scale)); }

void Sgd::update_all(const std::vector<Update>& updates, double grad_scale) {
  std::vector<SgdUpdate> kernels;
  kernels.reserve(updates.size());
  for (const Update& each : updates) kernels.push_back(kernel_of(each.slot, each.grad, each.lr, grad_scale));
  launch(SgdUpdates{.updates = kernels});
}

}  // namespace refrain
