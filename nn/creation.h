// Where and how modules create their parameters: device, dtype and seed of the calling thread, set by a scope.
//
//   CreationScope scope({.device = Device::plan()});
//   Vit model(vit_l_16());            // sizes without bytes
//
// A parameter's initial values are keyed by the seed and its full name (`blocks.3.attention.qkv.weight`), and, when
// the same name is created again in the same scope, by how often that happened: the same program gives the same
// values, and leaving out one parameter changes no other.
#pragma once

#include <refrain/core/context.h>
#include <refrain/core/device.h>
#include <refrain/core/dtype.h>
#include <refrain/core/random.h>
#include <refrain/core/tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace refrain {

struct CreationOptions {
  Device device = Device::cpu();
  std::optional<DType> dtype = {};  // of parameters and buffers; none: as the thread's PrecisionScope says, f32 without one
  std::uint64_t seed = 0;
  // Hears of each parameter, by the name that counts for its values, as soon as it has them: its bytes may be taken elsewhere and
  // evicted before the next one is made.
  std::function<void(const std::string& name, const Tensor& parameter)> on_parameter = {};
};

class CreationScope {
 public:
  explicit CreationScope(const CreationOptions& options);
  ~CreationScope();
  CreationScope(const CreationScope&) = delete;
  CreationScope& operator=(const CreationScope&) = delete;

 private:
  struct State;
  friend CreationOptions& creation_options();
  friend RandomKey creation_key(std::string_view name);
  friend std::string creation_name(std::string_view name);
  static State& state();
  CreationOptions old_options_;
  const ModulePath* old_base_;
  std::map<std::string, std::uint32_t> old_counts_;
};

// The calling thread's; without a scope the CPU device and seed 0.
CreationOptions& creation_options();

// Of a parameter that is created now.
DType creation_dtype();

// Full name of a parameter `name` of the module under construction.
std::string creation_name(std::string_view name);

// Key of the initial values of a parameter `name` of the module under construction (thread_context().module).
RandomKey creation_key(std::string_view name);

}  // namespace refrain
