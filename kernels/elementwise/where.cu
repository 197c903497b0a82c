// Comparison and selection on CUDA. Selection moves bits: one kernel a size of element, not a dtype.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

namespace elementwise_kernels {

using cuda::kMapThreads;
using cuda::MapArguments;

template <class T>
__device__ __forceinline__ bool compare(CompareOp op, T a, T b) {
  switch (op) {
    case CompareOp::equal: return a == b;
    case CompareOp::not_equal: return a != b;
    case CompareOp::less: return a < b;
    case CompareOp::less_equal: return a <= b;
    case CompareOp::greater: return a > b;
    case CompareOp::greater_equal: return a >= b;
  }
  return false;
}

// S of any dtype, compared as T.
template <class T, class S, int kCount>
__global__ __launch_bounds__(kMapThreads) void compare_elements(MapArguments<2> k, CompareOp op) {
  const std::uint32_t i = blockIdx.x * kMapThreads + threadIdx.x;
  if (i >= k.index.numel) return;
  std::int32_t at[3];
  const std::uint32_t first = k.index.offsets(i, at) * kCount, left = k.inner - first, count = left < kCount ? left : kCount;
  T a[kCount], b[kCount];
  std::uint8_t out[kCount];
  cuda::load_operand(static_cast<const S*>(k.operands[1].address) + at[1], count, k.operands[1].is_repeated, a);
  cuda::load_operand(static_cast<const S*>(k.operands[2].address) + at[2], count, k.operands[2].is_repeated, b);
#pragma unroll
  for (int j = 0; j < kCount; ++j) out[j] = compare(op, a[j], b[j]) ? 1 : 0;
  cuda::store_values(static_cast<std::uint8_t*>(k.operands[0].address) + at[0], count, out);
}

// T moves as it is; operands that are not wide are of S and widened.
template <class T, class S, int kCount>
__global__ __launch_bounds__(kMapThreads) void select_elements(MapArguments<3> k) {
  const std::uint32_t i = blockIdx.x * kMapThreads + threadIdx.x;
  if (i >= k.index.numel) return;
  std::int32_t at[4];
  const std::uint32_t first = k.index.offsets(i, at) * kCount, left = k.inner - first, count = left < kCount ? left : kCount;
  std::uint8_t condition[kCount];
  T values[2][kCount];
  cuda::load_operand(static_cast<const std::uint8_t*>(k.operands[1].address) + at[1], count, k.operands[1].is_repeated,
                     condition);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const cuda::MapOperand& from = k.operands[n + 2];
    if (std::is_same_v<T, S> || from.is_wide)
      cuda::load_operand(static_cast<const T*>(from.address) + at[n + 2], count, from.is_repeated, values[n]);
    else
      cuda::load_operand(static_cast<const S*>(from.address) + at[n + 2], count, from.is_repeated, values[n]);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[0][j] = condition[j] ? values[0][j] : values[1][j];
  cuda::store_values(static_cast<T*>(k.operands[0].address) + at[0], count, values[0]);
}

template <class T, class S>
void run_compare(const Cuda& device, const Compare& k) {
  constexpr int kPack = 16 / int(sizeof(S));
  cuda::start_map<kPack, 2>(sizeof(S), k.out, {&k.a, &k.b}, [&](const MapArguments<2>& arguments, dim3 grid, auto count) {
    cuda::launch(k.name, compare_elements<T, S, decltype(count)::value>, {.grid = grid, .block = kMapThreads}, device, arguments,
                 k.op);
  });
}

template <class T, class S>
void run_where(const Cuda& device, const Where& k) {
  constexpr int kPack = 16 / int(sizeof(T));
  cuda::start_map<kPack, 3>(sizeof(T), k.out, {&k.condition, &k.a, &k.b},
                            [&](const MapArguments<3>& arguments, dim3 grid, auto count) {
                              cuda::launch(k.name, select_elements<T, S, decltype(count)::value>,
                                           {.grid = grid, .block = kMapThreads}, device, arguments);
                            });
}

}  // namespace elementwise_kernels

void run(Cuda device, const Compare& k) {
  using namespace elementwise_kernels;
  switch (k.a.dtype()) {
    case DType::f64: return run_compare<double, double>(device, k);
    case DType::f32: return run_compare<float, float>(device, k);
    case DType::f16: return run_compare<float, cuda::half>(device, k);
    case DType::bf16: return run_compare<float, cuda::bfloat>(device, k);
    case DType::i64: return run_compare<std::int64_t, std::int64_t>(device, k);
    case DType::i32: return run_compare<std::int32_t, std::int32_t>(device, k);
    case DType::u8:
    case DType::boolean: return run_compare<std::uint8_t, std::uint8_t>(device, k);
  }
}

void run(Cuda device, const Where& k) {
  using namespace elementwise_kernels;
  if (k.a.dtype() != k.b.dtype()) {
    const DType narrow = k.a.dtype() == DType::f32 ? k.b.dtype() : k.a.dtype();
    return narrow == DType::f16 ? run_where<float, cuda::half>(device, k) : run_where<float, cuda::bfloat>(device, k);
  }
  switch (size_of(k.out.dtype())) {
    case 8: return run_where<std::uint64_t, std::uint64_t>(device, k);
    case 4: return run_where<std::uint32_t, std::uint32_t>(device, k);
    case 2: return run_where<std::uint16_t, std::uint16_t>(device, k);
    default: return run_where<std::uint8_t, std::uint8_t>(device, k);
  }
}

}  // namespace refrain
