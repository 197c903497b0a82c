#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/convert.h>
#include <refrain/kernels/convert/convert.h>

namespace refrain {

namespace {

struct ConvertOp {
  static constexpr std::string_view name = "convert";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    DType from = DType::f32, to = DType::f32;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, DType dtype) {
    const Tensor out = op_output(x.shape(), dtype, x.device());
    launch(Convert{.x = x, .out = out});
    return {out, {x.dtype(), dtype}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? converted(grad_out, saved.from) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) { return converted(x, saved.to); }

 private:
  static Tensor converted(const Tensor& t, DType dtype) {
    const Tensor out = empty(t.shape(), dtype, t.device());
    launch(Convert{.x = t, .out = out});
    return out;
  }
};

}  // namespace

Tensor convert(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : apply<ConvertOp>(x, dtype); }

}  // namespace refrain
