// Unary kernels on CUDA: the CPU's formulas, one kernel a storage type that switches by function outside the loop over a pack.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

namespace elementwise_kernels {

namespace math = cuda::math;

struct UnaryFunction {
  UnaryOp op;

  template <class T, int kCount>
  __device__ __forceinline__ void operator()(const T (&in)[1][kCount], T (&out)[kCount]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = f(in[0][i]);
    };
    switch (op) {
      case UnaryOp::neg: return each([](T x) { return -x; });
      case UnaryOp::abs: return each([](T x) { return math::magnitude(x); });
      case UnaryOp::exp: return each([](T x) { return math::exponential(x); });
      case UnaryOp::log: return each([](T x) { return math::logarithm(x); });
      case UnaryOp::sqrt: return each([](T x) { return math::root(x); });
      case UnaryOp::rsqrt: return each([](T x) { return math::divide(T(1), math::root(x)); });
      case UnaryOp::reciprocal: return each([](T x) { return math::divide(T(1), x); });
      case UnaryOp::square: return each([](T x) { return x * x; });
      case UnaryOp::sin: return each([](T x) { return math::sine(x); });
      case UnaryOp::cos: return each([](T x) { return math::cosine(x); });
      case UnaryOp::tanh: return each([](T x) { return math::tanh(x); });
      case UnaryOp::sigmoid: return each([](T x) { return math::sigmoid(x); });
      case UnaryOp::relu: return each([](T x) { return x <= T(0) ? T(0) : x; });
      case UnaryOp::gelu_erf: return each([](T x) { return math::gelu_erf(x); });
      case UnaryOp::gelu_tanh: return each([](T x) { return math::gelu_tanh(x); });
      case UnaryOp::silu: return each([](T x) { return math::silu(x); });
    }
  }
};

}  // namespace elementwise_kernels

void run(Cuda device, const Unary& k) {
  cuda::dispatch_mixed({k.out.dtype()}, [&](auto arithmetic, auto storage) {
    cuda::map<decltype(arithmetic), decltype(storage), 1>(k.name, device, k.out, {&k.x},
                                                          elementwise_kernels::UnaryFunction{k.op});
  });
}

}  // namespace refrain
