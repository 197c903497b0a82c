// Conversion on CUDA. Between f32 and the 16-bit types a kernel each, in packs; every other pair through f64 or i64, which hold
// all values of the others, in one kernel that switches by dtype.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/core/cuda/copy.h>
#include <refrain/kernels/common/cuda/round_to_odd.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/convert/convert.cuh>
#include <refrain/kernels/convert/convert.h>

namespace refrain {

namespace convert_kernels {

using cuda::bfloat;
using cuda::half;
using cuda::kMapThreads;
using cuda::MapArguments;

template <class To, class From, int kCount>
__global__ __launch_bounds__(kMapThreads) void convert_floats(MapArguments<1> k) {
  const std::uint32_t i = blockIdx.x * kMapThreads + threadIdx.x;
  if (i >= k.index.numel) return;
  std::int32_t at[2];
  const std::uint32_t first = k.index.offsets(i, at) * kCount, left = k.inner - first, count = left < kCount ? left : kCount;
  float values[kCount];
  cuda::load_operand(static_cast<const From*>(k.operands[1].address) + at[1], count, k.operands[1].is_repeated, values);
  cuda::store_values(static_cast<To*>(k.operands[0].address) + at[0], count, values);
}

// Towards zero, values out of range to the nearest end, NaN to 0.
template <class To>
__device__ __forceinline__ To to_integer(double value) {
  constexpr To least = std::is_signed_v<To> ? To(std::uint64_t{1} << (8 * sizeof(To) - 1)) : To(0), most = To(~least);
  if (value != value) return To(0);
  if (value <= double(least)) return least;
  if (value >= double(most)) return most;
  return static_cast<To>(value);
}

struct AnyDTypes {
  DType to, from;
};

__global__ __launch_bounds__(kMapThreads) void convert_any(MapArguments<1> k, AnyDTypes dtypes) {
  const std::uint32_t i = blockIdx.x * kMapThreads + threadIdx.x;
  if (i >= k.index.numel) return;
  std::int32_t at[2];
  k.index.offsets(i, at);
  const void* from = k.operands[1].address;
  void* to = k.operands[0].address;
  double real = 0;
  std::int64_t integer = 0;
  bool is_real = true;
  switch (dtypes.from) {
    case DType::f64: real = static_cast<const double*>(from)[at[1]]; break;
    case DType::f32: real = double(static_cast<const float*>(from)[at[1]]); break;
    case DType::f16: real = double(cuda::widen(static_cast<const half*>(from)[at[1]])); break;
    case DType::bf16: real = double(cuda::widen(static_cast<const bfloat*>(from)[at[1]])); break;
    case DType::i64: integer = static_cast<const std::int64_t*>(from)[at[1]], is_real = false; break;
    case DType::i32: integer = static_cast<const std::int32_t*>(from)[at[1]], is_real = false; break;
    case DType::u8: integer = static_cast<const std::uint8_t*>(from)[at[1]], is_real = false; break;
    case DType::boolean: integer = static_cast<const std::uint8_t*>(from)[at[1]] != 0, is_real = false; break;
  }
  const double value = is_real ? real : double(integer);
  switch (dtypes.to) {
    case DType::f64: static_cast<double*>(to)[at[0]] = value; break;
    case DType::f32: static_cast<float*>(to)[at[0]] = is_real ? float(real) : float(integer); break;
    case DType::f16: static_cast<half*>(to)[at[0]] = cuda::narrow_once<half>(value); break;
    case DType::bf16: static_cast<bfloat*>(to)[at[0]] = cuda::narrow_once<bfloat>(value); break;
    case DType::i64: static_cast<std::int64_t*>(to)[at[0]] = is_real ? to_integer<std::int64_t>(real) : integer; break;
    case DType::i32:
      static_cast<std::int32_t*>(to)[at[0]] = is_real ? to_integer<std::int32_t>(real) : std::int32_t(integer);
      break;
    case DType::u8:
      static_cast<std::uint8_t*>(to)[at[0]] = is_real ? to_integer<std::uint8_t>(real) : std::uint8_t(integer);
      break;
    case DType::boolean: static_cast<std::uint8_t*>(to)[at[0]] = is_real ? real != 0 : integer != 0; break;
  }
}

bool is_float_pair(DType a, DType b) { return (a == DType::f32 || is_16_bit(a)) && (b == DType::f32 || is_16_bit(b)); }

template <class F>
void dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::f32)
    f(float{});
  else if (dtype == DType::f16)
    f(half{});
  else
    f(bfloat{});
}

}  // namespace convert_kernels

namespace cuda {

void convert_strided(const Cuda& device, const Shape& shape, DType to_dtype, std::byte* to, const Strides& to_strides,
                     DType from_dtype, const std::byte* from, const Strides& from_strides) {
  using namespace convert_kernels;
  if (to_dtype == from_dtype) return copy_strided(device, shape, int(size_of(to_dtype)), to, to_strides, from, from_strides);
  const std::array<Strides, 2> strides{to_strides, from_strides};
  const std::array<const std::byte*, 2> addresses{to, from};
  const std::array<int, 2> sizes{int(size_of(to_dtype)), int(size_of(from_dtype))};
  if (!is_float_pair(to_dtype, from_dtype)) {
    return start_views<1, 1>(0, shape, strides, addresses, sizes, [&](const MapArguments<1>& arguments, dim3 grid, auto) {
      launch(Convert::name, convert_any, {.grid = grid, .block = kMapThreads}, device, arguments,
             AnyDTypes{to_dtype, from_dtype});
    });
  }
  dispatch_float(to_dtype, [&](auto to_zero) {
    dispatch_float(from_dtype, [&](auto from_zero) {
      using To = decltype(to_zero);
      using From = decltype(from_zero);
      if constexpr (!std::is_same_v<To, From>) {
        start_views<8, 1>(0, shape, strides, addresses, sizes, [&](const MapArguments<1>& arguments, dim3 grid, auto count) {
          launch(Convert::name, convert_floats<To, From, decltype(count)::value>, {.grid = grid, .block = kMapThreads}, device,
                 arguments);
        });
      }
    });
  });
}

}  // namespace cuda

void run(Cuda device, const Convert& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  cuda::convert_strided(device, k.out.shape(), k.out.dtype(), k.out.address(), k.out.strides(), k.x.dtype(), k.x.address(),
                        k.x.strides());
}

}  // namespace refrain
