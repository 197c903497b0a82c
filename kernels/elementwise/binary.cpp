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

template <class T>
void run_pow(const Scalar& k) {
  const T exponent = T(k.scalar);
  if (exponent == T(2)) return map_unary<T>(k.out, k.x, [](auto, auto x) { return hn::Mul(x, x); });
  if (exponent == T(1)) return map_unary<T>(k.out, k.x, [](auto, auto x) { return x; });
  // The C library's pow() one element at a time: exp(s·log(x)) in vectors would lose digits in proportion to s·log(x).
  map_strided<T, 1>(k.out, {&k.x}, {k.x.data<T>()}, [&](const std::array<const T*, 1>& in, T* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = std::pow(in[0][i], exponent);
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
  dispatch_wide(k.out.dtype(), k.name, [&](auto zero) { run_binary<decltype(zero)>(k); });
}

void run(Cpu, const Scalar& k) {
  dispatch_wide(k.out.dtype(), k.name, [&](auto zero) { run_scalar<decltype(zero)>(k); });
}

}  // namespace refrain
