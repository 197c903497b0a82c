#include <refrain/core/half.h>
#include <refrain/kernels/emulator/libraries/cudnn_types.h>

#include <bit>
#include <cstring>
#include <vector>

namespace refrain::emulator {

namespace {

// To nearest, of 10 bits behind the point.
float in_tf32(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
  return std::bit_cast<float>(bits);
}

template <class Sum>
std::vector<Sum> values_of(const CudnnTensor& tensor, const void* data, bool is_tf32) {
  std::vector<Sum> values(std::size_t(tensor.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (tensor.type) {
      case CUDNN_DATA_DOUBLE:
        values[i] = Sum(static_cast<const double*>(data)[i]);
        break;
      case CUDNN_DATA_HALF:
        values[i] = Sum(float(static_cast<const f16*>(data)[i]));
        break;
      case CUDNN_DATA_BFLOAT16:
        values[i] = Sum(float(static_cast<const bf16*>(data)[i]));
        break;
      default: {
        const float value = static_cast<const float*>(data)[i];
        values[i] = Sum(is_tf32 ? in_tf32(value) : value);
      }
    }
  }
  return values;
}

template <class Sum>
void write(const CudnnTensor& tensor, void* data, std::int64_t i, Sum value) {
  switch (tensor.type) {
    case CUDNN_DATA_DOUBLE:
      static_cast<double*>(data)[i] = value;
      return;
    case CUDNN_DATA_HALF:
      static_cast<f16*>(data)[i] = f16(float(value));
      return;
    case CUDNN_DATA_BFLOAT16:
      static_cast<bf16*>(data)[i] = bf16(float(value));
      return;
    default:
      static_cast<float*>(data)[i] = float(value);
  }
}

// f(index of x, of the filter, of y) for every product that the convolution has.
template <class F>
void for_products(const CudnnCall& call, F&& f) {
  const CudnnTensor &x = call.x, &filter = call.filter, &y = call.y;
  for (std::int64_t n = 0; n < y.n; ++n)
    for (std::int64_t o = 0; o < y.c; ++o)
      for (std::int64_t i = 0; i < y.h * y.w; ++i)
        for (std::int64_t c = 0; c < x.c; ++c)
          for (std::int64_t p = 0; p < filter.h; ++p) {
            const std::int64_t h = i / y.w * call.convolution.stride + p - call.convolution.padding;
            if (h < 0 || h >= x.h) continue;
            for (std::int64_t q = 0; q < filter.w; ++q) {
              const std::int64_t w = i % y.w * call.convolution.stride + q - call.convolution.padding;
              if (w < 0 || w >= x.w) continue;
              f(((n * x.c + c) * x.h + h) * x.w + w, ((o * x.c + c) * filter.h + p) * filter.w + q,
                (n * y.c + o) * y.h * y.w + i);
            }
          }
}

template <class Sum>
void run(const CudnnCall& call) {
  const bool is_tf32 = call.x.type == CUDNN_DATA_FLOAT && call.convolution.math != CUDNN_FMA_MATH;
  const CudnnTensor& out = call.direction == CudnnDirection::forward         ? call.y
                           : call.direction == CudnnDirection::backward_data ? call.x
                                                                             : call.filter;
  std::vector<Sum> sums(std::size_t(out.numel()), Sum(0)), x, filter, y;
  if (call.direction != CudnnDirection::backward_data) x = values_of<Sum>(call.x, call.x_data, is_tf32);
  if (call.direction != CudnnDirection::backward_filter) filter = values_of<Sum>(call.filter, call.filter_data, is_tf32);
  if (call.direction != CudnnDirection::forward) y = values_of<Sum>(call.y, call.y_data, is_tf32);
  for_products(call, [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    const std::size_t a = std::size_t(i), b = std::size_t(j), c = std::size_t(k);
    switch (call.direction) {
      case CudnnDirection::forward:
        sums[c] += x[a] * filter[b];
        return;
      case CudnnDirection::backward_data:
        sums[a] += filter[b] * y[c];
        return;
      case CudnnDirection::backward_filter:
        sums[b] += x[a] * y[c];
        return;
    }
  });
  if (call.bias != nullptr) {
    const std::vector<Sum> bias = values_of<Sum>({call.y.type, 1, call.y.c, 1, 1}, call.bias, false);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += bias[i / std::size_t(call.y.h * call.y.w) % bias.size()];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) write(out, call.out, std::int64_t(i), sums[i]);
}

}  // namespace

void run_cudnn_call(const CudnnCall& call) {
  if (call.workspace_bytes > 0) std::memset(call.workspace, 0xcd, std::size_t(call.workspace_bytes));
  call.convolution.compute == CUDNN_DATA_DOUBLE ? run<double>(call) : run<float>(call);
}

}  // namespace refrain::emulator
