// Gradients of the unary kernels on CUDA, the CPU's formulas.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

namespace elementwise_kernels {

namespace math = cuda::math;

// in[0] is the gradient, in[1] the forward's output where backward_reads_output(op), else its input.
struct UnaryBackwardFunction {
  UnaryOp op;

  template <class T, int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[2][kCount], T (&out)[kCount]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = f(in[0][i], in[1][i]);
    };
    switch (op) {
      case UnaryOp::neg: return;  // validate() refuses it
      case UnaryOp::abs: return each([](T g, T x) { return x == T(0) ? T(0) : math::is_negative(x) ? -g : g; });
      case UnaryOp::exp: return each([](T g, T y) { return g * y; });
      case UnaryOp::log: return each([](T g, T x) { return math::divide(g, x); });
      case UnaryOp::sqrt: return each([](T g, T y) { return math::divide(g, y + y); });
      case UnaryOp::rsqrt: return each([](T g, T y) { return T(-0.5) * g * (y * y * y); });
      case UnaryOp::reciprocal: return each([](T g, T y) { return -g * (y * y); });
      case UnaryOp::square: return each([](T g, T x) { return g * (x + x); });
      case UnaryOp::sin: return each([](T g, T x) { return g * math::cosine(x); });
      case UnaryOp::cos: return each([](T g, T x) { return -g * math::sine(x); });
      case UnaryOp::tanh: return each([](T g, T y) { return g * math::fused(-y, y, T(1)); });
      case UnaryOp::sigmoid: return each([](T g, T y) { return g * (y * (T(1) - y)); });
      case UnaryOp::relu: return each([](T g, T y) { return y <= T(0) ? T(0) : g; });
      case UnaryOp::gelu_erf: return each([](T g, T x) { return g * math::gelu_erf_derivative(x); });
      case UnaryOp::gelu_tanh: return each([](T g, T x) { return g * math::gelu_tanh_derivative(x); });
      case UnaryOp::silu: return each([](T g, T x) { return g * math::silu_derivative(x); });
    }
  }
};

}  // namespace elementwise_kernels

void run(Cuda device, const UnaryBackward& k) {
  cuda::dispatch_mixed({k.out.dtype()}, [&](auto arithmetic, auto storage) {
    cuda::map<decltype(arithmetic), decltype(storage), 2>(k.name, device, k.out, {&k.grad_out, &k.value},
                                                          elementwise_kernels::UnaryBackwardFunction{k.op});
  });
}

}  // namespace refrain
