// Host and device arithmetic of core/cuda/strided.cuh, as tests see it.
#pragma once

#include <refrain/core/shape.h>

#include <cstdint>
#include <vector>

namespace refrain {

// The offsets of both operands for every element, as a kernel computes them part by part; parts have spans below `limit`.
struct StridedOffsets {
  std::vector<std::int64_t> to, from;
  std::int64_t num_parts = 0;
};
StridedOffsets strided_offsets(const Shape& shape, const Strides& to, const Strides& from, std::int64_t limit);

// numbers[i] / divisor, by the device.
std::vector<std::uint32_t> quotients(const std::vector<std::uint32_t>& numbers, std::int64_t divisor);

}  // namespace refrain
