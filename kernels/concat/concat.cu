// Concatenation on CUDA: a copy, or an exact widening, of each input to its place.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/concat/concat.h>
#include <refrain/kernels/convert/convert.cuh>

namespace refrain {

void run(Cuda device, const Concat& k) {
  if (!k.out.has_bytes()) return;
  const std::int64_t step = k.out.strides()[k.dim] * std::int64_t(size_of(k.out.dtype()));
  std::int64_t at = 0;
  for (const In& input : k.inputs) {
    if (input.numel() > 0) {
      cuda::convert_strided(device, input.shape(), k.out.dtype(), k.out.address() + at * step, k.out.strides(), input.dtype(),
                            input.address(), input.strides());
    }
    at += input.dim(k.dim);
  }
}

}  // namespace refrain
