#include <refrain/nn/module.h>

#include <refrain/autograd/tape.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace refrain {

namespace {

// Two handles of one parameter: the same bytes seen the same way.
bool share_bytes(const Tensor& a, const Tensor& b) {
  return is_same(a, b) || (a.storage() && a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
                           a.strides() == b.strides());
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (!a.has_bytes() || !b.has_bytes()) return true;
  std::vector<std::byte> a_buffer, b_buffer;
  const std::span<const std::byte> x = host_bytes(contiguous_values(a), a_buffer), y = host_bytes(contiguous_values(b), b_buffer);
  return std::memcmp(x.data(), y.data(), x.size()) == 0;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void Module::check_new_name(std::string_view new_name) const {
  check(!new_name.empty() && new_name.front() != '.' && new_name.back() != '.', "module: '", new_name, "' is no member name");
  const auto is_taken = [&](const auto& member) { return member.name == new_name; };
  const bool taken = std::any_of(parameters_.begin(), parameters_.end(), is_taken) ||
                     std::any_of(buffers_.begin(), buffers_.end(), is_taken) ||
                     std::any_of(children_.begin(), children_.end(), [&](const auto& child) { return child->name_ == new_name; });
  check(!taken, "module: there already is a member '", new_name, "'");
}

Tensor Module::create(std::string_view member_name, const Shape& shape, const Init& init, DType dtype) const {
  const KindScope kind(MemoryKind::parameter);
  const ContextScope<std::string_view> op(&ThreadContext::op, "create");
  const Tensor tensor = empty(shape, dtype, creation_options().device);
  init.fill(tensor, creation_key(member_name));
  return tensor;
}

void Module::add_parameter(std::string_view name, Tensor& member, const Shape& shape, const Init& init) {
  check_new_name(name);
  member = create(name, shape, init, creation_dtype());
  set_requires_grad(member, true);
  parameters_.push_back({std::string(name), &member});
  if (const auto& on_parameter = creation_options().on_parameter) on_parameter(creation_name(name), member);
}

void Module::add_tied(std::string_view name, Tensor& member) {
  check_new_name(name);
  parameters_.push_back({std::string(name), &member});
}

void Module::add_buffer(std::string_view name, Tensor& member, const Shape& shape, const Init& init) {
  add_buffer(name, member, shape, init, creation_dtype());
}

void Module::add_buffer(std::string_view name, Tensor& member, const Shape& shape, const Init& init, DType dtype) {
  check_new_name(name);
  member = create(name, shape, init, dtype);
  buffers_.push_back({std::string(name), &member});
}

void Module::add_child(std::string_view child_name, std::shared_ptr<Module> child) {
  check_new_name(child_name);
  child->name_ = child_name;
  children_.push_back(std::move(child));
}

std::vector<std::shared_ptr<Module>> Module::children() const { return children_; }

void Module::visit(std::vector<Member> Module::*members, const std::string& prefix, const Visit& f) const {
  for (const Member& member : this->*members) {
    if (member.tensor->defined()) f(prefix + member.name, *member.tensor);
  }
  for (const auto& child : children_) child->visit(members, prefix + child->name_ + ".", f);
}

std::vector<NamedTensor> Module::unique(std::vector<Member> Module::*members) const {
  std::vector<NamedTensor> found;
  std::map<const Storage*, std::vector<std::size_t>> by_storage;
  visit(members, "", [&](const std::string& full_name, Tensor& tensor) {
    std::vector<std::size_t>& earlier = by_storage[tensor.storage().get()];
    if (std::any_of(earlier.begin(), earlier.end(), [&](std::size_t i) { return share_bytes(found[i].tensor, tensor); })) return;
    earlier.push_back(found.size());
    found.push_back({full_name, tensor});
  });
  return found;
}

std::vector<NamedTensor> Module::named_parameters() const { return unique(&Module::parameters_); }
std::vector<NamedTensor> Module::named_buffers() const { return unique(&Module::buffers_); }

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> tensors;
  for (NamedTensor& parameter : named_parameters()) tensors.push_back(std::move(parameter.tensor));
  return tensors;
}

std::int64_t Module::num_parameters() const {
  std::int64_t count = 0;
  for (const NamedTensor& parameter : named_parameters()) count += parameter.tensor.numel();
  return count;
}

std::vector<NamedTensor> Module::state_dict() const {
  std::vector<NamedTensor> state = named_parameters();
  for (NamedTensor& buffer : named_buffers()) state.push_back(std::move(buffer));
  return state;
}

void Module::load_state_dict(std::span<const NamedTensor> entries) {
  std::map<std::string, Tensor> own;  // every name, aliases of tied tensors included
  for (auto members : {&Module::parameters_, &Module::buffers_}) {
    visit(members, "", [&](const std::string& full_name, Tensor& tensor) { own.emplace(full_name, tensor); });
  }
  std::vector<std::string> problems;
  std::vector<std::pair<Tensor, Tensor>> copies;  // {own, entry}
  for (const NamedTensor& entry : entries) {
    const auto found = own.find(entry.name);
    if (found == own.end()) {
      problems.push_back(concat("unexpected ", entry.name));
    } else if (found->second.shape() != entry.tensor.shape() || found->second.dtype() != entry.tensor.dtype()) {
      problems.push_back(concat(entry.name, " must be ", found->second.dtype(), " ", found->second.shape(), ", got ", entry.tensor.dtype(),
                                " ", entry.tensor.shape()));
    } else {
      for (const auto& [to, from] : copies) {
        if (!share_bytes(to, found->second) || same_values(from, entry.tensor)) continue;
        problems.push_back(concat(entry.name, " is tied to another entry with other values"));
      }
      copies.emplace_back(found->second, entry.tensor);
    }
  }
  for (const NamedTensor& wanted : state_dict()) {
    const bool is_given =
        std::any_of(copies.begin(), copies.end(), [&](const auto& copy) { return share_bytes(copy.first, wanted.tensor); });
    const bool is_named = is_given || std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == wanted.name; });
    if (!is_named) problems.push_back(concat("missing ", wanted.name));
  }
  check(problems.empty(), "load_state_dict: ", joined(problems));
  for (const auto& [to, from] : copies) copy_values(to, from);
}

void Module::train(bool on) {
  is_training_ = on;
  for (const auto& child : children_) child->train(on);
}

std::int64_t Module::freeze(std::span<const std::string> patterns) {
  const std::vector<NamedTensor> parameters = named_parameters();
  std::vector<bool> is_frozen(parameters.size(), false);
  for (const std::string& pattern : patterns) {
    bool is_used = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!matches_pattern(pattern, parameters[i].name)) continue;
      is_used = true;
      is_frozen[i] = true;
    }
    check(is_used, "freeze: no parameter matches '", pattern, "'");
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_frozen[i]) set_requires_grad(parameters[i].tensor, false);
  }
  return std::count(is_frozen.begin(), is_frozen.end(), true);
}

}  // namespace refrain
