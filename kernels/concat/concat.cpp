#include <refrain/kernels/concat/concat.h>
#include <refrain/kernels/convert/convert.h>

namespace refrain {

void validate(const Concat& k) {
  check(!k.inputs.empty(), k.name, ": no inputs");
  check(k.dim >= 0 && k.dim < k.out.num_dims(), k.name, ": dim ", k.dim, " is out of range for ", k.out.shape());
  std::int64_t extent = 0;
  for (const In& input : k.inputs) {
    if (k.out.dtype() != DType::f32 || !is_16_bit(input.dtype())) check_dtype(k.name, "every input", input, k.out.dtype());
    Shape expected = k.out.shape();
    if (input.num_dims() == expected.size()) expected[k.dim] = input.dim(k.dim);
    check_shape(k.name, "every input", input, expected);
    extent += input.dim(k.dim);
  }
  check(extent == k.out.dim(k.dim), k.name, ": out must have extent ", extent, " along dim ", k.dim, ", got ", k.out.shape());
}

Cost cost(const Concat& k) {
  double bytes = k.out.bytes();
  for (const In& input : k.inputs) bytes += input.bytes();
  return {0, bytes};
}

void run(Cpu, const Concat& k) {
  if (!k.out.has_bytes()) return;
  const std::int64_t size = std::int64_t(size_of(k.out.dtype()));
  std::int64_t at = 0;
  for (const In& input : k.inputs) {
    if (input.numel() > 0) {
      convert_strided(input.shape(), k.out.dtype(), k.out.address() + at * k.out.strides()[k.dim] * size, k.out.strides(), input.dtype(),
                      input.address(), input.strides());
    }
    at += input.dim(k.dim);
  }
}

}  // namespace refrain
