#include <refrain/optim/parameter_group.h>

namespace refrain {

std::vector<ParameterGroup> make_groups(std::span<const NamedTensor> parameters, double weight_decay, std::span<const std::string> no_decay_patterns) {
  ParameterGroup decayed{.weight_decay = weight_decay}, others;
  std::vector<bool> is_used(no_decay_patterns.size(), false);
  for (const NamedTensor& parameter : parameters) {
    bool decays = parameter.tensor.num_dims() >= 2;
    for (std::size_t i = 0; i < no_decay_patterns.size(); ++i) {
      if (!matches_pattern(no_decay_patterns[i], parameter.name)) continue;
      is_used[i] = true;
      decays = false;
    }
    if (!parameter.tensor.requires_grad()) continue;
    ParameterGroup& group = decays ? decayed : others;
    group.parameters.push_back(parameter.tensor);
    group.names.push_back(parameter.name);
  }
  for (std::size_t i = 0; i < is_used.size(); ++i) check(is_used[i], "make_groups: no parameter matches '", no_decay_patterns[i], "'");
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&decayed, &others}) {
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace refrain
