// Binary and scalar kernels on the CPU.
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/elementwise/strided_map.h>

#include <cmath>

namespace refrain {

namespace {

using namespace simd;

// The larger operand; NaN where either is.
constexpr auto kMaximum = [](auto, auto a, auto b) { return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b); };
constexpr auto kMinimum = [](auto, auto a, auto b) { return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b); };

template <class T>
void run_binary(const Binary& k) {
  const auto map = [&](auto f) { map_binary<T>(k.out, k.a, k.b, f); };
  switch (k.op) {
    case BinaryOp::add: return map([](auto, auto a, auto b) { return hn::Add(a, b); });
    case BinaryOp::sub: return map([](auto, auto a, auto b) { return hn::Sub(a, b); });
    case BinaryOp::mul: return map([](auto, auto a, auto b) { return hn::Mul(a, b); });
    case BinaryOp::div: return map([](auto, auto a, auto b) { return hn::Div(a, b); });
    case BinaryOp::maximum: return map(kMaximum);
    case BinaryOp::minimum: return map(kMinimum);
  }
}

// The C library's pow() one element at a time: exp(s·log(x)) in vectors would lose digits in proportion to s·log(x).
template <class T>
T power(T x, T exponent) {
  if (exponent == T(2)) return x * x;
  if (exponent == T(1)) return x;
  return std::pow(x, exponent);
}

template <class T>
void run_pow(const Scalar& k) {
  const T exponent = T(k.scalar);
  if (exponent == T(2)) return map_unary<T>(k.out, k.x, [](auto, auto x) { return hn::Mul(x, x); });
  if (exponent == T(1)) return map_unary<T>(k.out, k.x, [](auto, auto x) { return x; });
  map_strided<T, 1>(k.out, {&k.x}, [&](const std::array<const T*, 1>& in, T* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = power(in[0][i], exponent);
  });
}

template <class T>
void run_scalar_backward(const ScalarBackward& k) {
  if (k.op == ScalarOp::rdiv) {
    const T s = T(-k.scalar);
    return map_binary<T>(k.out, k.grad_out, k.x, [s](auto d, auto g, auto x) { return hn::Mul(g, hn::Div(hn::Div(hn::Set(d, s), x), x)); });
  }
  const T exponent = T(k.scalar - 1), factor = T(k.scalar);
  map_strided<T, 2>(k.out, {&k.grad_out, &k.x}, [&](const std::array<const T*, 2>& in, T* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = in[0][i] * (power(in[1][i], exponent) * factor);
  });
}

// Quotients first: b² would overflow or underflow where they do not.
template <class T>
void run_div_backward(const DivBackward& k) {
  map_strided<T, 3>(k.out, {&k.grad_out, &k.a, &k.b}, [](const std::array<const T*, 3>& in, T* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = -((in[0][i] / in[2][i]) * (in[1][i] / in[2][i]));
  });
}

template <class T>
void run_scalar(const Scalar& k) {
  const T s = T(k.scalar);
  const auto map = [&](auto f) { map_unary<T>(k.out, k.x, [s, f](auto d, auto x) { return f(d, x, hn::Set(d, s)); }); };
  switch (k.op) {
    case ScalarOp::add: return map([](auto, auto x, auto v) { return hn::Add(x, v); });
    case ScalarOp::mul: return map([](auto, auto x, auto v) { return hn::Mul(x, v); });
    case ScalarOp::div: return map([](auto, auto x, auto v) { return hn::Div(x, v); });
    case ScalarOp::rsub: return map([](auto, auto x, auto v) { return hn::Sub(v, x); });
    case ScalarOp::rdiv: return map([](auto, auto x, auto v) { return hn::Div(v, x); });
    case ScalarOp::pow: return run_pow<T>(k);
    case ScalarOp::maximum: return map(kMaximum);
    case ScalarOp::minimum: return map(kMinimum);
  }
}

}  // namespace

void run(Cpu, const Binary& k) {
  dispatch_arithmetic(k.out.dtype(), [&](auto zero) { run_binary<decltype(zero)>(k); });
}

void run(Cpu, const Scalar& k) {
  dispatch_arithmetic(k.out.dtype(), [&](auto zero) { run_scalar<decltype(zero)>(k); });
}

void run(Cpu, const ScalarBackward& k) {
  dispatch_arithmetic(k.out.dtype(), [&](auto zero) { run_scalar_backward<decltype(zero)>(k); });
}

void run(Cpu, const DivBackward& k) {
  dispatch_arithmetic(k.grad_out.dtype(), [&](auto zero) { run_div_backward<decltype(zero)>(k); });
}

}  // namespace refrain
