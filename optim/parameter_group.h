// Parameters that share a weight decay and a factor on the learning rate.
#pragma once

#include <refrain/core/named_tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refrain {

struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  std::vector<std::string> names = {};  // one a parameter; they name the optimizer's state. Empty: the parameters are numbered
  // Where a parameter that is a piece of a larger one begins in it, one a parameter; empty: 0. Stochastic rounding is keyed by it.
  std::vector<std::int64_t> first_elements = {};
  double weight_decay = 0;
  double lr_scale = 1;                  // multiplies the lr of every step
};

// Two groups: tensors of 2 and more dims with `weight_decay`, and the rest (norms, biases) and those whose full name
// matches a pattern without. In patterns `*` stands for any characters, dots too, `?` for one. Parameters that want no
// gradient (frozen) are left out, and so is a group without members. Throws InvalidArgument for a pattern that matches none.
std::vector<ParameterGroup> make_groups(std::span<const NamedTensor> parameters, double weight_decay,
                                        std::span<const std::string> no_decay_patterns = {});

}  // namespace refrain
