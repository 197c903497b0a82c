// Shapes of known models by their usual names.
#pragma once

#include <refrain/train/config.h>

namespace refrain {

// Sets the model's keys to those of config.preset. Throws InvalidArgument for an unknown name.
void apply_preset(Config& config);

}  // namespace refrain
