// Parameters that are cut into pieces as they are made, so that a model larger than the device can be built.
#pragma once

#include <refrain/core/tensor.h>

#include <functional>
#include <map>
#include <string>

namespace refrain {

// Keeps this rank's piece of every new parameter, and evicts the parameter: for CreationOptions::on_parameter. All ranks must make
// the same values, as they do with one seed: nothing is sent.
class NewbornPieces {
 public:
  NewbornPieces(const Device& home, int rank, int world_size) : home_(home), rank_(rank), world_size_(world_size) {}

  std::function<void(const std::string& name, const Tensor& parameter)> hook();
  // The piece, which is not kept any longer. Throws InvalidArgument for a parameter that was not made under the hook.
  Tensor take(const std::string& name);

 private:
  Device home_;
  int rank_, world_size_;
  std::map<std::string, Tensor> pieces_;
};

}  // namespace refrain
