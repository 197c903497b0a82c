// Unary kernels on the CPU.
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/elementwise/gelu.h>
#include <refrain/kernels/elementwise/strided_map.h>

namespace refrain {

namespace {

using namespace simd;

template <class T>
void run_unary(const Unary& k) {
  const auto map = [&](auto f) { map_unary<T>(k.out, k.x, f); };
  switch (k.op) {
    case UnaryOp::neg: return map([](auto, auto x) { return hn::Neg(x); });
    case UnaryOp::abs: return map([](auto, auto x) { return hn::Abs(x); });
    case UnaryOp::exp: return map([](auto d, auto x) { return simd::exp(d, x); });
    case UnaryOp::log: return map([](auto d, auto x) { return simd::log(d, x); });
    case UnaryOp::sqrt: return map([](auto, auto x) { return hn::Sqrt(x); });
    case UnaryOp::rsqrt: return map([](auto d, auto x) { return hn::Div(hn::Set(d, T(1)), hn::Sqrt(x)); });
    case UnaryOp::reciprocal: return map([](auto d, auto x) { return hn::Div(hn::Set(d, T(1)), x); });
    case UnaryOp::square: return map([](auto, auto x) { return hn::Mul(x, x); });
    case UnaryOp::sin: return map([](auto d, auto x) { return simd::sin(d, x); });
    case UnaryOp::cos: return map([](auto d, auto x) { return simd::cos(d, x); });
    case UnaryOp::tanh: return map([](auto d, auto x) { return simd::tanh(d, x); });
    case UnaryOp::sigmoid: return map([](auto d, auto x) { return simd::sigmoid(d, x); });
    case UnaryOp::relu: return map([](auto d, auto x) { return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x); });
    case UnaryOp::gelu_erf: return map([](auto d, auto x) { return simd::gelu_erf(d, x); });
    case UnaryOp::gelu_tanh: return map([](auto d, auto x) { return simd::gelu_tanh(d, x); });
    case UnaryOp::silu: return map([](auto d, auto x) { return simd::silu(d, x); });
  }
}

}  // namespace

void run(Cpu, const Unary& k) {
  dispatch_arithmetic(k.out.dtype(), [&](auto zero) { run_unary<decltype(zero)>(k); });
}

}  // namespace refrain
