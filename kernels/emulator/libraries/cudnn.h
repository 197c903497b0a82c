// What the fake of cuDNN was asked for, for tests. Needs no header of NVIDIA's, nor the fake.
#pragma once

#include <cstddef>

namespace refrain::emulator {

struct CudnnRecord {
  int num_choices = 0;  // times that algorithms were asked for
  int num_runs = 0;
  // Of the latest run: the words of cuDNN's headers.
  int algorithm = -1, math = -1;
  std::size_t workspace_bytes = 0;
  bool has_bias = false;
  const void* stream = nullptr;
};
inline CudnnRecord& cudnn_record() {
  static CudnnRecord record;
  return record;
}

}  // namespace refrain::emulator
