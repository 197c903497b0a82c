#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/kernels/softmax/softmax.h>

namespace refrain {

namespace {

template <bool is_log>
struct Softmax {
  static constexpr std::string_view name = is_log ? "log_softmax" : "softmax";
  struct Saved {
    SavedTensor y;
    int dim = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, int dim) {
    const int from_front = normalize_dim(dim, x.num_dims(), name);
    const Tensor y = op_output(x.shape(), x.dtype(), x.device());
    launch(SoftmaxForward{.x = contiguous_values(x), .dim = from_front, .is_log = is_log, .out = y});
    return {y, {needs[0] ? SavedTensor(y) : SavedTensor(), from_front}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs) {
    const Tensor y = saved.y.get(), grad_x = empty_like(y);
    launch(SoftmaxBackward{.y = y, .grad_out = grad_out, .dim = saved.dim, .is_log = is_log, .out = grad_x});
    return {grad_x};
  }
};

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return apply<Softmax<false>>(x, dim); }

Tensor log_softmax(const Tensor& x, int dim) { return apply<Softmax<true>>(x, dim); }

}  // namespace refrain
