// A small data set in IDX files whose classes can be told apart, for tests that train.
#pragma once

#include <refrain/tests/support/scratch_directory.h>

#include <cstdint>
#include <string>

namespace refrain::testing {

inline std::string big_endian(std::uint32_t value) { return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)}; }

// Training and test images of side x side in data/, whose brightness tells the class, 0 or 1, with some noise.
inline void write_images(const ScratchDirectory& scratch, std::uint32_t side = 8, std::uint32_t num_train = 50,
                         std::uint32_t num_test = 20) {
  for (const auto& [prefix, count] : {std::pair("train", num_train), std::pair("t10k", num_test)}) {
    std::string images = big_endian(0x803) + big_endian(count) + big_endian(side) + big_endian(side),
                labels = big_endian(0x801) + big_endian(count);
    std::uint32_t noise = 1;
    for (std::uint32_t i = 0; i < count; ++i) {
      labels += char(i % 2);
      for (std::uint32_t p = 0; p < side * side; ++p) images += char(((noise = noise * 1664525 + 1013904223) >> 26) + (i % 2 ? 120 : 30));
    }
    scratch.write(std::string("data/") + prefix + "-images-idx3-ubyte", images);
    scratch.write(std::string("data/") + prefix + "-labels-idx1-ubyte", labels);
  }
}

}  // namespace refrain::testing
