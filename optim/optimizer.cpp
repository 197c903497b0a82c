#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace refrain {

namespace {

constexpr std::string_view kNumSteps = "num_steps";

std::string steps_key(const std::string& parameter) { return parameter + ".num_steps"; }

std::int64_t count_in(const OptimizerState& state, const std::string& key) {
  const auto found = state.scalars.find(key);
  check(found != state.scalars.end(), "optimizer: state has no '", key, "'");
  const double value = found->second;
  check(value >= 0 && value <= 0x1p53 && value == std::floor(value), "optimizer: '", key, "' must be a count, got ", value);
  return std::int64_t(value);
}

}  // namespace

Optimizer::Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> state_names, const UpdateOptions& options)
    : options_(options), state_names_(std::move(state_names)) {
  std::set<std::string> seen_names;
  std::set<std::pair<const Storage*, std::int64_t>> seen;
  for (const ParameterGroup& group : groups) {
    check(group.names.empty() || group.names.size() == group.parameters.size(), "optimizer: a group of ", group.parameters.size(),
          " parameters has ", group.names.size(), " names");
    check(group.first_elements.empty() || group.first_elements.size() == group.parameters.size(), "optimizer: a group of ",
          group.parameters.size(), " parameters has ", group.first_elements.size(), " first elements");
    check(std::isfinite(group.weight_decay) && group.weight_decay >= 0, "optimizer: weight_decay must be finite and not negative, got ",
          group.weight_decay);
    check(std::isfinite(group.lr_scale) && group.lr_scale >= 0, "optimizer: lr_scale must be finite and not negative, got ", group.lr_scale);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& parameter = group.parameters[i];
      const std::string name = group.names.empty() ? std::to_string(seen_names.size()) : group.names[i];
      check(parameter.defined(), "optimizer: parameter '", name, "' is undefined");
      check(parameter.storage() != nullptr, "optimizer: parameter '", name, "' has no storage");
      check(parameter.is_contiguous(), "optimizer: parameter '", name, "' must be contiguous, got ", parameter.shape(), " with strides ",
            parameter.strides());
      check(seen_names.insert(name).second, "optimizer: parameter '", name, "' comes twice");
      check(parameter.numel() == 0 || seen.insert({parameter.storage().get(), parameter.offset()}).second, "optimizer: parameter '", name,
            "' is already there under another name");
      if (!parameter.requires_grad()) continue;
      const std::int64_t first_element = group.first_elements.empty() ? 0 : group.first_elements[i];
      Slot slot{parameter, name, group.weight_decay, group.lr_scale, first_element, {}, {}};
      const KindScope kind(MemoryKind::optimizer_state);
      const ModuleScope module(parameter.storage()->tag().module);
      const DType state_dtype = options_.state == StateDType::f32 ? accumulator_dtype(parameter.dtype()) : parameter.dtype();
      for (std::size_t s = 0; s < state_names_.size(); ++s) slot.state.push_back(zeros(parameter.shape(), state_dtype, parameter.device()));
      if (options_.master && is_16_bit(parameter.dtype())) slot.master = empty(parameter.shape(), DType::f32, parameter.device());
      slots_.push_back(std::move(slot));
    }
  }
  reset_masters();
}

void Optimizer::reset_masters() {
  for (const Slot& slot : slots_) {
    if (slot.master.defined()) launch(Convert{.x = slot.parameter.without_autograd(), .out = slot.master});
  }
}

void Optimizer::step(double lr, double grad_scale) {
  begin_step(lr, grad_scale);
  std::vector<Update> updates;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Tensor grad = grad_of(slots_[i].parameter);
    if (!grad.defined()) continue;
    // A copy of one gradient at a time.
    if (grad.is_contiguous())
      updates.push_back(begin_update(slots_[i], grad, lr));
    else
      update_parameter(std::int64_t(i), lr, grad_scale);
  }
  if (!updates.empty()) {
    const PhaseScope phase(Phase::update);
    update_all(updates, grad_scale);
    for (const Update& done : updates) done.slot.parameter.storage()->bump_version();
  }
  end_step();
}

void Optimizer::begin_step(double lr, double grad_scale, const Tensor& guard) {
  check(std::isfinite(float(lr)) && lr >= 0, "optimizer: lr must be finite and not negative, got ", lr);
  check(std::isfinite(float(grad_scale)), "optimizer: grad_scale must be finite, got ", grad_scale);
  ++num_steps_;
  num_updated_elements_ = num_lost_updates_ = 0;
  first_non_finite_ = -1;
  counters_ = Tensor();
  guard_ = guard;
}

Tensor Optimizer::lost_counter(const Slot& slot) const {
  return is_16_bit(slot.parameter.dtype()) ? view::slice(counters_, 0, 0, 1) : Tensor();
}

Tensor Optimizer::non_finite_counter(const Slot& slot) const {
  const std::int64_t index = &slot - slots_.data();
  return view::slice(counters_, 0, 1 + index, 2 + index);
}

void Optimizer::update_parameter(std::int64_t index, double lr, double grad_scale) {
  Slot& slot = slots_.at(std::size_t(index));
  const Tensor grad = grad_of(slot.parameter);
  check(grad.defined(), "optimizer: parameter '", slot.name, "' has no gradient");
  const PhaseScope phase(Phase::update);
  const Update one = begin_update(slot, grad, lr);
  const ModuleScope module(slot.parameter.storage()->tag().module);
  update(slot, contiguous_values(grad), one.lr, grad_scale);
  slot.parameter.storage()->bump_version();
}

Optimizer::Update Optimizer::begin_update(Slot& slot, const Tensor& grad, double lr) {
  if (!counters_.defined()) {
    const PhaseScope phase(Phase::update);
    const KindScope kind(MemoryKind::workspace);
    counters_ = zeros({1 + std::int64_t(slots_.size())}, DType::i64, slot.parameter.device());
  }
  if (slot.parameter.has_bytes()) num_updated_elements_ += slot.parameter.numel();
  ++slot.num_steps;
  return {slot, grad, lr * slot.lr_scale};
}

void Optimizer::discount_update(std::int64_t index) {
  Slot& slot = slots_.at(std::size_t(index));
  if (slot.parameter.has_bytes()) num_updated_elements_ -= slot.parameter.numel();
  --slot.num_steps;
}

void Optimizer::update_all(const std::vector<Update>& updates, double grad_scale) {
  for (const Update& each : updates) {
    const ModuleScope module(each.slot.parameter.storage()->tag().module);
    update(each.slot, each.grad, each.lr, grad_scale);
  }
}

void Optimizer::end_step() {
  if (counters_.defined() && counters_.has_bytes()) {
    const std::vector<std::int64_t> counts = counters_.to_vector<std::int64_t>();
    num_lost_updates_ = counts[0];
    const auto found = std::find_if(counts.begin() + 1, counts.end(), [](std::int64_t count) { return count > 0; });
    if (found != counts.end()) first_non_finite_ = found - counts.begin() - 1;
  }
  counters_ = guard_ = Tensor();
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) clear_grad(slot.parameter);
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> parameters;
  for (const Slot& slot : slots_) parameters.push_back(slot.parameter);
  return parameters;
}

std::int64_t Optimizer::first_element(std::string_view name) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.name == name; });
  return found != slots_.end() ? found->first_element : 0;
}

std::vector<NamedTensor> Optimizer::state_tensors() const {
  std::vector<NamedTensor> tensors;
  for (const Slot& slot : slots_) {
    for (std::size_t s = 0; s < state_names_.size(); ++s) tensors.push_back({slot.name + "." + state_names_[s], slot.state[s]});
    if (slot.master.defined()) tensors.push_back({slot.name + ".master", slot.master});
  }
  return tensors;
}

OptimizerState Optimizer::state_dict() const {
  OptimizerState state;
  state.scalars[std::string(kNumSteps)] = double(num_steps_);
  for (const Slot& slot : slots_) {
    if (!state_names_.empty()) state.scalars[steps_key(slot.name)] = double(slot.num_steps);
  }
  state.tensors = state_tensors();
  return state;
}

void Optimizer::load_state(const OptimizerState& state) {
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : state.tensors) check(given.insert({entry.name, entry.tensor}).second, "optimizer: state has '", entry.name, "' twice");
  std::size_t expected = 0;
  for (const NamedTensor& own : state_tensors()) {
    const auto found = given.find(own.name);
    check(found != given.end(), "optimizer: state has no '", own.name, "'");
    const Tensor& tensor = found->second;
    check(tensor.shape() == own.tensor.shape() && tensor.dtype() == own.tensor.dtype(), "optimizer: state '", own.name, "' must be ",
          own.tensor.dtype(), ' ', own.tensor.shape(), ", got ", tensor.dtype(), ' ', tensor.shape());
    ++expected;
  }
  if (given.size() != expected) {
    for (const NamedTensor& own : state_tensors()) given.erase(own.name);
    fail("optimizer: state has unexpected '", given.begin()->first, "'");
  }
  const OptimizerState own_state = state_dict();
  for (const auto& entry : state.scalars) check(own_state.scalars.contains(entry.first), "optimizer: state has unexpected '", entry.first, "'");
  const std::int64_t num_steps = count_in(state, std::string(kNumSteps));
  std::vector<std::int64_t> slot_steps;
  for (const Slot& slot : slots_) slot_steps.push_back(state_names_.empty() ? 0 : count_in(state, steps_key(slot.name)));

  for (const NamedTensor& own : state_tensors()) {
    const Tensor& tensor = given.at(own.name);
    if (tensor.storage() != own.tensor.storage()) copy_values(own.tensor, tensor);
  }
  num_steps_ = num_steps;
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].num_steps = slot_steps[i];
}

}  // namespace refrain
