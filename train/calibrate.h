// What this machine was just measured to do: the two rates that turn Cost into a time.
#pragma once

#include <refrain/train/config.h>

#include <optional>
#include <string>

namespace refrain {

struct MachineRates {
  double flops_per_second = 0;  // of a transformer block, forward and backward, beside the time its bytes take
  double bytes_per_second = 0;  // of a large copy, read and written
  std::string source = {};      // where they are from, in words
};

// Measures for about half a second on the machine's pool or its GPU, in memory of its own: a copy, and one block as the configuration
// (resolved: image_size is set) has them, in its precision, with at most 512 channels and few samples. On a thread of its own,
// so that nothing of the caller's changes.
//
// On the device that the configuration names; nothing where that cannot be had.
std::optional<MachineRates> measure_rates(const Config& config);

}  // namespace refrain
