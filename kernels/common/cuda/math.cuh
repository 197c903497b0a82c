// Transcendental functions of f32 and f64, operation for operation those of kernels/common/simd_math.h and
// kernels/elementwise/gelu.h, so that CPU and CUDA give the same bits wherever the CPU fuses products with sums. Results below
// the least normal number may differ: the CPU flushes them to zero. log, sin, cos and pow are the device's own.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>

namespace refrain::cuda::math {

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ double root(double a) { return __dsqrt_rn(a); }
__device__ __forceinline__ float magnitude(float a) { return fabsf(a); }
__device__ __forceinline__ double magnitude(double a) { return fabs(a); }

__device__ __forceinline__ bool is_negative(float a) { return __float_as_uint(a) >> 31; }
__device__ __forceinline__ bool is_negative(double a) { return __double_as_longlong(a) < 0; }
__device__ __forceinline__ bool is_finite(float a) { return fabsf(a) <= 0x1.fffffep127f; }
__device__ __forceinline__ bool is_finite(double a) { return fabs(a) <= 0x1.fffffffffffffp1023; }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float sine(float x) { return sinf(x); }
__device__ __forceinline__ double sine(double x) { return sin(x); }
__device__ __forceinline__ float cosine(float x) { return cosf(x); }
__device__ __forceinline__ double cosine(double x) { return cos(x); }
__device__ __forceinline__ float power(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// What the CPU's kernels make of subnormal numbers, as they read and as they write.
__device__ __forceinline__ float flushed(float a) { return fabsf(a) < 0x1p-126f ? copysignf(0.0f, a) : a; }
__device__ __forceinline__ double flushed(double a) { return fabs(a) < 0x1p-1022 ? copysign(0.0, a) : a; }

template <class T>
inline constexpr bool kIsSingle = sizeof(T) == 4;

// c0 + v·(c1 + v·(c2 + …)).
template <class T>
__device__ __forceinline__ T horner(T, T c0) {
  return c0;
}
template <class T, class... Rest>
__device__ __forceinline__ T horner(T v, T c0, Rest... rest) {
  return fused(horner(v, T(rest)...), v, c0);
}

// 2^n for n of the normal range.
__device__ __forceinline__ float pow2(int n) { return __uint_as_float((std::uint32_t(n) + 127u) << 23); }
__device__ __forceinline__ double pow2(long long n) {
  return __longlong_as_double(static_cast<long long>((static_cast<unsigned long long>(n) + 1023u) << 52));
}

// x = n·ln 2 + r by Cody and Waite's two-part constant, e^r - 1 = r + r²·(1/2! + r/3! + …).
template <class T>
struct ExpParts;
template <>
struct ExpParts<float> {
  float em1;
  int n;
  __device__ __forceinline__ explicit ExpParts(float x) {
    const float shifted = fused(x, 1.4426950408889634074f, 0x1.8p23f), whole = shifted - 0x1.8p23f;
    float r = fused(-whole, 0x1.62e400p-1f, x);
    r = fused(-whole, float(0x1.7f7d1cf79abcap-20), r);
    const float tail = horner(r, 0.5f, float(1 / 6.0), float(1 / 24.0), float(1 / 120.0), float(1 / 720.0), float(1 / 5040.0));
    em1 = fused(r * r, tail, r);
    n = int(__float_as_uint(shifted) - 0x4B400000u);  // far outside the range this wraps, and is not used
  }
};
template <>
struct ExpParts<double> {
  double em1;
  long long n;
  __device__ __forceinline__ explicit ExpParts(double x) {
    const double shifted = fused(x, 1.4426950408889634074, 0x1.8p52), whole = shifted - 0x1.8p52;
    double r = fused(-whole, 6.93147180369123816490e-01, x);
    r = fused(-whole, 1.90821492927058770002e-10, r);
    const double tail = horner(r, 0.5, 1 / 6.0, 1 / 24.0, 1 / 120.0, 1 / 720.0, 1 / 5040.0, 1 / 40320.0, 1 / 362880.0,
                               1 / 3628800.0, 1 / 39916800.0, 1 / 479001600.0, 1 / 6227020800.0);
    em1 = fused(r * r, tail, r);
    n = static_cast<long long>(static_cast<unsigned long long>(__double_as_longlong(shifted)) - 0x4338000000000000u);
  }
};

template <class T>
__device__ __forceinline__ T exponential(T x) {
  const ExpParts<T> parts(x);
  const auto n = parts.n >> 1;  // two factors, as n reaches beyond the exponents of normal numbers
  T y = (parts.em1 + T(1)) * pow2(n) * pow2(parts.n - n);
  if (x < (kIsSingle<T> ? T(-104) : T(-746))) y = T(0);
  return x > (kIsSingle<T> ? T(88.75) : T(709.8)) ? T(INFINITY) : y;
}

// exp(x) for x <= 0 (or NaN): results below the least normal number are 0.
template <class T>
__device__ __forceinline__ T exp_nonpositive(T x) {
  const ExpParts<T> parts(x);
  const T scale = pow2(parts.n), y = fused(parts.em1, scale, scale);
  return x < (kIsSingle<T> ? T(-87.33) : T(-708.3)) ? T(0) : y;
}

template <class T>
__device__ __forceinline__ T expm1_nonpositive(T x) {
  const ExpParts<T> parts(x);
  const T scale = pow2(parts.n), y = fused(parts.em1, scale, scale - T(1));
  return x < T(-60) ? T(-1) : y;
}

template <class T>
__device__ __forceinline__ T tanh(T x) {
  const T e = expm1_nonpositive(magnitude(x) * T(-2));
  const T y = divide(-e, e + T(2));
  if constexpr (kIsSingle<T>)
    return copysignf(y, x);
  else
    return copysign(y, x);
}

template <class T>
__device__ __forceinline__ T sigmoid(T x) {
  const T e = exp_nonpositive(-magnitude(x));
  return divide(x < T(0) ? e : T(1), e + T(1));
}

// exp(t²)·erfc(t) for t >= 0.
__device__ __forceinline__ float erfcx(float t) {
  const float w = divide(1.0f, t + 3.0f), q = (t - 3.0f) * w;
  return w * horner(q, float(1.0740069064), float(-0.88339445996), float(0.59022841026), float(-0.3104666589),
                    float(0.1195273334), float(-0.026836217341), float(-0.0012168890719), float(0.003077058),
                    float(-0.000500258783), float(-0.00033422440617));
}
__device__ __forceinline__ double erfcx(double t) {
  const double w = divide(1.0, t + 4.0), q = (t - 4.0) * w;
  return w * horner(q, 1.0959956610004911183, -0.97654872908088212578, 0.77320870226523745861, -0.54085383131322007157,
                    0.33085158787798812172, -0.17401093724044453377, 0.076381514909877719069, -0.026370053332303208479,
                    0.0061120556492774555825, -0.00028095893558087195305, -0.00045505264556396543325, 0.00017681319046764806794,
                    -3.6352966465878490368e-6, -0.000018862135071311392475, 4.6946199765833127117e-6, 1.4268525380407012033e-6,
                    -8.462915017252110253e-7, -7.90003000732478314e-8, 1.2397022621920956744e-7, 3.3863100022513686192e-9,
                    -1.5213206819950385169e-8, -6.3690374625306792876e-10, 9.0845417712139066728e-10);
}

// Area of the standard normal distribution left of x, and its density at x.
template <class T>
struct Normal {
  T cdf, density;
  __device__ __forceinline__ explicit Normal(T x) {
    T a = magnitude(x);
    a = a > T(40) ? T(40) : a;
    const T half_a = T(0.5) * a, square = half_a * a, error = fused(half_a, a, -square);
    T g = exp_nonpositive(-square);
    g = fused(-g, error, g);
    const T tail = T(0.5) * g * erfcx(a * T(0.70710678118654752440));
    cdf = x < T(0) ? tail : T(1) - tail;
    density = g * T(0.39894228040143267794);
  }
};

// Large |x| is bounded, so that -inf gives 0 and inf gives inf instead of NaN.
template <class T>
__device__ __forceinline__ T bounded_below(T x, T limit) {
  return x < -limit ? -limit : x;
}
template <class T>
__device__ __forceinline__ T bounded(T x, T limit) {
  return bounded_below(x > limit ? limit : x, limit);
}

template <class T>
__device__ __forceinline__ T gelu_erf(T x) {
  return bounded_below(x, T(40)) * Normal<T>(x).cdf;
}

template <class T>
__device__ __forceinline__ T gelu_erf_derivative(T x) {
  const Normal<T> normal(x);
  return fused(bounded(x, T(40)), normal.density, normal.cdf);
}

// √(2/π)·(x + 0.044715·x³), doubled.
template <class T>
__device__ __forceinline__ T gelu_tanh_argument(T x) {
  return x * fused(x * x, T(2 * 0.79788456080286535588 * 0.044715), T(2 * 0.79788456080286535588));
}

template <class T>
__device__ __forceinline__ T gelu_tanh(T x) {
  const T b = bounded_below(x, T(40));
  return b * sigmoid(gelu_tanh_argument(b));
}

template <class T>
__device__ __forceinline__ T gelu_tanh_derivative(T x) {
  const T b = bounded(x, T(40)), s = sigmoid(gelu_tanh_argument(b));
  const T slope = fused(b * b, T(6 * 0.79788456080286535588 * 0.044715), T(2 * 0.79788456080286535588));
  return fused(b * s * (T(1) - s), slope, s);
}

template <class T>
__device__ __forceinline__ T silu(T x) {
  return bounded_below(x, T(800)) * sigmoid(x);
}

template <class T>
__device__ __forceinline__ T silu_derivative(T x) {
  const T b = bounded(x, T(800)), s = sigmoid(b);
  return fused(b * s, T(1) - s, s);
}

}  // namespace refrain::cuda::math
