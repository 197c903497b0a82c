// Validation and cost of softmax.
#include <refrain/kernels/softmax/softmax.h>

namespace refrain {

namespace {

template <class K>
void check_like(const K& k, std::string_view argument, const TensorArg& arg, const TensorArg& like) {
  check_shape(K::name, argument, arg, like.shape());
  check_dtype(K::name, argument, arg, like.dtype());
  check_contiguous(K::name, argument, arg);
  check(k.dim >= 0 && k.dim < like.num_dims(), K::name, ": dim must be 0 … ", like.num_dims() - 1, ", got ", k.dim);
}

}  // namespace

void validate(const SoftmaxForward& k) {
  check_floating(k.name, "x", k.x);
  check_contiguous(k.name, "x", k.x);
  check_like(k, "out", k.out, k.x);
}

Cost cost(const SoftmaxForward& k) { return {14.0 * double(k.x.numel()), 2 * k.x.bytes()}; }

void validate(const SoftmaxBackward& k) {
  check_floating(k.name, "y", k.y);
  check_contiguous(k.name, "y", k.y);
  check_like(k, "grad_out", k.grad_out, k.y);
  check_like(k, "grad_x", k.out, k.y);
}

Cost cost(const SoftmaxBackward& k) { return {(k.is_log ? 14.0 : 4.0) * double(k.y.numel()), 3 * k.y.bytes()}; }

}  // namespace refrain
