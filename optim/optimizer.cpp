#include <refrain/autograd/tape.h>
#include <refrain/optim/optimizer.h>

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

Optimizer::Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> state_names) : state_names_(std::move(state_names)) {
  std::set<std::string> seen_names;
  std::set<std::pair<const Storage*, std::int64_t>> seen;
  for (const ParameterGroup& group : groups) {
    check(group.names.empty() || group.names.size() == group.parameters.size(), "optimizer: a group of ", group.parameters.size(),
          " parameters has ", group.names.size(), " names");
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
      Slot slot{parameter, name, group.weight_decay, group.lr_scale, {}};
      const KindScope kind(MemoryKind::optimizer_state);
      const ModuleScope module(parameter.storage()->tag().module);
      for (std::size_t s = 0; s < state_names_.size(); ++s) slot.state.push_back(zeros(parameter.shape(), parameter.dtype(), parameter.device()));
      slots_.push_back(std::move(slot));
    }
  }
}

void Optimizer::step(double lr, double grad_scale) {
  check(std::isfinite(lr) && lr >= 0, "optimizer: lr must be finite and not negative, got ", lr);
  check(std::isfinite(grad_scale), "optimizer: grad_scale must be finite, got ", grad_scale);
  const PhaseScope phase(Phase::update);
  ++num_steps_;
  for (Slot& slot : slots_) {
    const Tensor grad = grad_of(slot.parameter);
    if (!grad.defined()) continue;
    const ModuleScope module(slot.parameter.storage()->tag().module);
    ++slot.num_steps;
    update(slot, contiguous_values(grad), lr * slot.lr_scale, grad_scale);
    slot.parameter.storage()->bump_version();
  }
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) clear_grad(slot.parameter);
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> parameters;
  for (const Slot& slot : slots_) parameters.push_back(slot.parameter);
  return parameters;
}

OptimizerState Optimizer::state_dict() const {
  OptimizerState state;
  state.scalars[std::string(kNumSteps)] = double(num_steps_);
  for (const Slot& slot : slots_) {
    if (!state_names_.empty()) state.scalars[steps_key(slot.name)] = double(slot.num_steps);
    for (std::size_t s = 0; s < state_names_.size(); ++s) state.tensors.push_back({slot.name + "." + state_names_[s], slot.state[s]});
  }
  return state;
}

void Optimizer::load_state(const OptimizerState& state) {
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : state.tensors) check(given.insert({entry.name, entry.tensor}).second, "optimizer: state has '", entry.name, "' twice");
  std::size_t expected = 0;
  for (const NamedTensor& own : state_dict().tensors) {
    const auto found = given.find(own.name);
    check(found != given.end(), "optimizer: state has no '", own.name, "'");
    const Tensor& tensor = found->second;
    check(tensor.shape() == own.tensor.shape() && tensor.dtype() == own.tensor.dtype(), "optimizer: state '", own.name, "' must be ",
          own.tensor.dtype(), ' ', own.tensor.shape(), ", got ", tensor.dtype(), ' ', tensor.shape());
    ++expected;
  }
  if (given.size() != expected) {
    for (const NamedTensor& own : state_dict().tensors) given.erase(own.name);
    fail("optimizer: state has unexpected '", given.begin()->first, "'");
  }
  const std::int64_t num_steps = count_in(state, std::string(kNumSteps));
  std::vector<std::int64_t> slot_steps;
  for (const Slot& slot : slots_) slot_steps.push_back(state_names_.empty() ? 0 : count_in(state, steps_key(slot.name)));

  for (const NamedTensor& own : state_dict().tensors) {
    const Tensor& tensor = given.at(own.name);
    if (tensor.storage() != own.tensor.storage()) copy_values(own.tensor, tensor);
  }
  num_steps_ = num_steps;
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].num_steps = slot_steps[i];
}

}  // namespace refrain
