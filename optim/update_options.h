// How updates treat parameters of 16 bits: rounding, what the state is kept in, master copies. Parameters of f32 and f64
// have state of their own dtype and no master, whatever stands here.
#pragma once

#include <refrain/kernels/update/update.h>

#include <cstdint>
#include <string_view>

namespace refrain {

// What moments of 16-bit parameters are kept in. Adam's `square` does badly in 16 bits: in f16 it is zero for small gradients,
// in bf16 rounded to nearest it stops following them (docs/numerics.md, "Updates").
enum class StateDType : std::uint8_t { same_as_parameter, f32 };

struct UpdateOptions {
  Rounding rounding = Rounding::nearest;  // of parameters without a master, and of 16-bit state
  StateDType state = StateDType::same_as_parameter;
  bool master = false;                    // f32 copies that take the updates; parameters are masters rounded to nearest
  std::uint64_t seed = 0;                 // of stochastic rounding
};

// The random stream of a parameter's update in optimizer step `step`: a function of seed, step and the parameter's name
// alone. 39 bits of the name's FNV-1a hash are in `stage` and `call` (whose lowest bit tells parameter and state apart), so
// neither the order nor the choice of the other parameters matters, and replicas and shards round alike.
RandomKey update_key(std::uint64_t seed, std::int64_t step, std::string_view parameter_name);

}  // namespace refrain
