// What the word `device` of a configuration means on this machine.
#pragma once

#include <refrain/core/device.h>
#include <refrain/train/config.h>

#include <cstdint>
#include <string>

namespace refrain {

// "auto" is "cuda" where there is a CUDA device, else "cpu". "cuda" is the first one, or under a launcher the rank's own, by
// LOCAL_RANK; where CUDA_VISIBLE_DEVICES shows a single one it is that.
DeviceKind device_kind(const Config& config);

// The process's own device. Throws DeviceUnavailable, with the reason, where it cannot be had.
Device choose_device(const Config& config);

// The same with an arena and a ledger of its own.
Device new_device(const Config& config);

// A plan device for what the configuration runs on; the hardware need not be there.
Device plan_device(const Config& config);

// The word for a device, which is never "auto".
std::string device_word(const Device& device);

// Throws InvalidArgument for a word that is none.
void check_device_word(const std::string& word);

// Bytes that a training there may still take: for a CPU device of system and control group, for a CUDA device of its memory.
std::int64_t free_memory(const Device& device);

}  // namespace refrain
