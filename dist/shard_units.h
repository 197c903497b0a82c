// Which parameters are fetched and reduced together: those that the same stages read, of one dtype. Internal.
#pragma once

#include <refrain/core/named_tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace refrain::detail {

struct ShardUnit {
  std::vector<std::uint32_t> stages = {};     // that read them, in order
  std::vector<std::size_t> parameters = {};   // indices
  DType dtype = DType::f32;

  bool is_of(std::uint32_t stage) const;
};

struct ShardUnits {
  std::vector<NamedTensor> parameters;  // each once, in the order of the stages
  std::vector<ShardUnit> units;         // by their first stages
  std::uint32_t num_stages = 0;
};

// Throws InvalidArgument for a parameter that shares its storage with something else, which could not be given back.
ShardUnits units_of(std::span<const std::vector<NamedTensor>> stages);

}  // namespace refrain::detail
