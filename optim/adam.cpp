#include <refrain/kernels/update/update.h>
#include <refrain/optim/adam.h>

namespace refrain {

Adam::Adam(std::vector<ParameterGroup> groups, const AdamOptions& options, const UpdateOptions& update, bool is_decoupled)
    : Optimizer(std::move(groups), {"mean", "square"}, update), options_(options), is_decoupled_(is_decoupled) {
  check(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "adam: betas must be in [0, 1), got ",
        options.beta1, " and ", options.beta2);
  check(options.eps >= 0, "adam: eps must not be negative, got ", options.eps);
}

AdamUpdate Adam::kernel_of(const Slot& slot, const Tensor& grad, double lr, double grad_scale) const {
  return AdamUpdate{.grad = grad, .lr = lr, .beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps,
                    .weight_decay = slot.weight_decay, .grad_scale = grad_scale, .is_decoupled = is_decoupled_, .step = slot.num_steps,
                    .out = slot.parameter, .mean = slot.state[0], .square = slot.state[1],
                    .master = slot.master, .num_lost = lost_counter(slot), .num_non_finite = non_finite_counter(slot),
                    .rounding = rounding_of(slot), .guard = guard()};
}

void Adam::update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) { launch(kernel_of(slot, grad, lr, grad_scale)); }

void Adam::update_all(const std::vector<Update>& updates, double grad_scale) {
  std::vector<AdamUpdate> kernels;
  kernels.reserve(updates.size());
  for (const Update& each : updates) kernels.push_back(kernel_of(each.slot, each.grad, each.lr, grad_scale));
  launch(AdamUpdates{.updates = kernels});
}

}  // namespace refrain
