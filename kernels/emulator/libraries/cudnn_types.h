// What lies behind the fake's descriptors, and the arithmetic of a convolution on them.
#pragma once

#include <cudnn.h>

#include <cstdint>

namespace refrain::emulator {

struct CudnnTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::int64_t n = 0, c = 0, h = 0, w = 0;  // of a filter: out, in, height, width
  std::int64_t numel() const { return n * c * h * w; }
  std::int64_t bytes() const { return numel() * (type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2); }
};

struct CudnnConvolution {
  std::int64_t padding = 0, stride = 1;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

enum class CudnnDirection { forward, backward_data, backward_filter };

// All of a call, taken when it is made.
struct CudnnCall {
  CudnnDirection direction;
  CudnnTensor x, filter, y;
  CudnnConvolution convolution;
  int algorithm;
  const void *x_data, *filter_data, *y_data;
  void* out;
  const void* bias = nullptr;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
// Sums in f32 (f64 for f64), rounded once, after the bias. f32 is rounded to TF32 as it is read where the kind of arithmetic lets
// tensor cores have it. The workspace is written over.
void run_cudnn_call(const CudnnCall& call);

}  // namespace refrain::emulator
