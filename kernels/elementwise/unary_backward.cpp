// Gradients of the unary kernels on the CPU.
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/elementwise/gelu.h>
#include <refrain/kernels/elementwise/strided_map.h>

namespace refrain {

namespace {

using namespace simd;

// v is the forward's output y where backward_reads_output(op), else its input x.
template <class T>
void run_unary_backward(const UnaryBackward& k) {
  const auto map = [&](auto f) { map_binary<T>(k.out, k.grad_out, k.value, f); };
  switch (k.op) {
    case UnaryOp::neg: return;  // validate() refuses it
    case UnaryOp::abs:
      return map([](auto d, auto g, auto x) { return hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), hn::Xor(g, hn::And(hn::SignBit(d), x))); });
    case UnaryOp::exp: return map([](auto, auto g, auto y) { return hn::Mul(g, y); });
    case UnaryOp::log: return map([](auto, auto g, auto x) { return hn::Div(g, x); });
    case UnaryOp::sqrt: return map([](auto, auto g, auto y) { return hn::Div(g, hn::Add(y, y)); });
    case UnaryOp::rsqrt:
      return map([](auto d, auto g, auto y) { return hn::Mul(hn::Mul(hn::Set(d, T(-0.5)), g), hn::Mul(hn::Mul(y, y), y)); });
    case UnaryOp::reciprocal: return map([](auto, auto g, auto y) { return hn::Mul(hn::Neg(g), hn::Mul(y, y)); });
    case UnaryOp::square: return map([](auto, auto g, auto x) { return hn::Mul(g, hn::Add(x, x)); });
    case UnaryOp::sin: return map([](auto d, auto g, auto x) { return hn::Mul(g, simd::cos(d, x)); });
    case UnaryOp::cos: return map([](auto d, auto g, auto x) { return hn::Mul(hn::Neg(g), simd::sin(d, x)); });
    case UnaryOp::tanh: return map([](auto d, auto g, auto y) { return hn::Mul(g, hn::NegMulAdd(y, y, hn::Set(d, T(1)))); });
    case UnaryOp::sigmoid: return map([](auto d, auto g, auto y) { return hn::Mul(g, hn::Mul(y, hn::Sub(hn::Set(d, T(1)), y))); });
    case UnaryOp::relu: return map([](auto d, auto g, auto y) { return hn::IfThenZeroElse(hn::Le(y, hn::Zero(d)), g); });
    case UnaryOp::gelu_erf: return map([](auto d, auto g, auto x) { return hn::Mul(g, simd::gelu_erf_derivative(d, x)); });
    case UnaryOp::gelu_tanh: return map([](auto d, auto g, auto x) { return hn::Mul(g, simd::gelu_tanh_derivative(d, x)); });
    case UnaryOp::silu: return map([](auto d, auto g, auto x) { return hn::Mul(g, simd::silu_derivative(d, x)); });
  }
}

}  // namespace

void run(Cpu, const UnaryBackward& k) {
  dispatch_arithmetic(k.out.dtype(), [&](auto zero) { run_unary_backward<decltype(zero)>(k); });
}

}  // namespace refrain
