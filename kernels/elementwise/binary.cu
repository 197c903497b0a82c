// Binary and scalar kernels and their gradients on CUDA, the CPU's formulas.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

namespace elementwise_kernels {

namespace math = cuda::math;

// The larger operand; NaN where either is.
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T smaller(T a, T b) {
  return a < b || a != a ? a : b;
}

struct BinaryFunction {
  BinaryOp op;

  template <class T, int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[2][kCount], T (&out)[kCount]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = f(in[0][i], in[1][i]);
    };
    switch (op) {
      case BinaryOp::add: return each([](T a, T b) { return a + b; });
      case BinaryOp::sub: return each([](T a, T b) { return a - b; });
      case BinaryOp::mul: return each([](T a, T b) { return a * b; });
      case BinaryOp::div: return each([](T a, T b) { return math::divide(a, b); });
      case BinaryOp::maximum: return each([](T a, T b) { return larger(a, b); });
      case BinaryOp::minimum: return each([](T a, T b) { return smaller(a, b); });
    }
  }
};

template <class T>
__device__ __forceinline__ T power(T x, T exponent) {
  if (exponent == T(2)) return x * x;
  if (exponent == T(1)) return x;
  return math::power(x, exponent);
}

template <class T>
struct ScalarFunction {
  ScalarOp op;
  T scalar;

  template <int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[1][kCount], T (&out)[kCount]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = f(in[0][i], scalar);
    };
    switch (op) {
      case ScalarOp::add: return each([](T x, T s) { return x + s; });
      case ScalarOp::mul: return each([](T x, T s) { return x * s; });
      case ScalarOp::div: return each([](T x, T s) { return math::divide(x, s); });
      case ScalarOp::rsub: return each([](T x, T s) { return s - x; });
      case ScalarOp::rdiv: return each([](T x, T s) { return math::divide(s, x); });
      case ScalarOp::pow: return each([](T x, T s) { return power(x, s); });
      case ScalarOp::maximum: return each([](T x, T s) { return larger(x, s); });
      case ScalarOp::minimum: return each([](T x, T s) { return smaller(x, s); });
    }
  }
};

// in[0] is the gradient, in[1] the forward's input.
template <class T>
struct ScalarBackwardFunction {
  bool is_pow;
  T scalar, exponent;  // exponent: scalar - 1, rounded once

  template <int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[2][kCount], T (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T g = in[0][i], x = in[1][i];
      out[i] = is_pow ? g * (power(x, exponent) * scalar) : g * math::divide(math::divide(-scalar, x), x);
    }
  }
};

// Quotients first: b² would overflow or underflow where they do not.
struct DivBackwardFunction {
  template <class T, int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[3][kCount], T (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = -(math::divide(in[0][i], in[2][i]) * math::divide(in[1][i], in[2][i]));
  }
};

}  // namespace elementwise_kernels

void run(Cuda device, const Binary& k) {
  cuda::dispatch_mixed({k.out.dtype(), k.a.dtype(), k.b.dtype()}, [&](auto arithmetic, auto storage) {
    cuda::map<decltype(arithmetic), decltype(storage), 2>(k.name, device, k.out, {&k.a, &k.b},
                                                          elementwise_kernels::BinaryFunction{k.op});
  });
}

void run(Cuda device, const DivBackward& k) {
  cuda::dispatch_mixed({k.out.dtype(), k.grad_out.dtype(), k.a.dtype(), k.b.dtype()}, [&](auto arithmetic, auto storage) {
    cuda::map<decltype(arithmetic), decltype(storage), 3>(k.name, device, k.out, {&k.grad_out, &k.a, &k.b},
                                                          elementwise_kernels::DivBackwardFunction{});
  });
}

void run(Cuda device, const Scalar& k) {
  cuda::dispatch_mixed({k.out.dtype()}, [&](auto arithmetic, auto storage) {
    using T = decltype(arithmetic);
    cuda::map<T, decltype(storage), 1>(k.name, device, k.out, {&k.x}, elementwise_kernels::ScalarFunction<T>{k.op, T(k.scalar)});
  });
}

void run(Cuda device, const ScalarBackward& k) {
  cuda::dispatch_mixed({k.out.dtype()}, [&](auto arithmetic, auto storage) {
    using T = decltype(arithmetic);
    const elementwise_kernels::ScalarBackwardFunction<T> f{k.op == ScalarOp::pow, T(k.scalar), T(k.scalar - 1)};
    cuda::map<T, decltype(storage), 2>(k.name, device, k.out, {&k.grad_out, &k.x}, f);
  });
}

}  // namespace refrain
