// Scalars as a TensorBoard event file: TFRecord frames (length, masked CRC-32C of it, data, masked CRC-32C of the data)
// around Event messages, which are small enough to encode by hand (tensorflow/core/util/event.proto, summary.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::tensorboard {

using Scalars = std::vector<std::pair<std::string, double>>;

// CRC-32C (Castagnoli) as TFRecord masks it.
std::uint32_t masked_crc32c(std::string_view bytes);

// The first record of a file.
std::string version_record(double wall_time);
std::string scalars_record(double wall_time, std::int64_t step, const Scalars& scalars);

// `events.out.tfevents.SECONDS.HOST.PID`
std::string file_name(double wall_time);

}  // namespace refrain::tensorboard
