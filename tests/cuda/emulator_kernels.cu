#include <refrain/kernels/common/cuda/intrinsics.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/tests/cuda/emulator_kernels.h>

#include <map>

namespace refrain::emulator_test {

namespace kernels {

using cuda::kAllLanes;

// Right ones.
__global__ void __launch_bounds__(1024) reverse(float* out) {
  REFRAIN_SHARED(float, values, [1024]);
  values[threadIdx.x] = float(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
__global__ void __launch_bounds__(1024) shuffles(float* out) {
  const float mine = float(threadIdx.x);
  out[threadIdx.x] = __shfl_xor_sync(kAllLanes, mine, 5);
  out[1024 + threadIdx.x] = __shfl_up_sync(kAllLanes, mine, 3, 16);
  out[2048 + threadIdx.x] = __shfl_down_sync(kAllLanes, mine, 2, 8);
  out[3072 + threadIdx.x] = __shfl_sync(kAllLanes, mine, 33);
}
__global__ void __launch_bounds__(1024) votes(float* out) {
  const bool is_odd = threadIdx.x % 2 == 1;
  out[threadIdx.x] = float(__ballot_sync(kAllLanes, is_odd) == 0xaaaaaaaau);
  out[1024 + threadIdx.x] = float(__any_sync(kAllLanes, threadIdx.x == 7) != 0);
  out[2048 + threadIdx.x] = float(__all_sync(kAllLanes, threadIdx.x < 31) == 0);
  out[3072 + threadIdx.x] = float(__reduce_add_sync(kAllLanes, unsigned(threadIdx.x)));
}
__global__ void __launch_bounds__(1024) block_sum(float* out) {
  REFRAIN_SHARED(float, slots, [8]);
  out[blockIdx.x * blockDim.x + threadIdx.x] = cuda::block_reduce<256>(float(threadIdx.x), slots, cuda::Add{});
}
__global__ void __launch_bounds__(1024) half_a_warp(float* out) {  // each half hands over on its own
  REFRAIN_SHARED(float, values, [32]);
  const unsigned half = threadIdx.x / 16, mask = 0xffffu << (16 * half);
  values[threadIdx.x] = float(threadIdx.x);
  __syncwarp(mask);
  out[threadIdx.x] = values[half * 16 + 15 - threadIdx.x % 16];
}
__global__ void __launch_bounds__(1024) early_exit(float* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(1024) count(float* out) { atomicAdd(reinterpret_cast<int*>(out), 1); }
__global__ void __launch_bounds__(1024) all_read(float* out) {  // everybody reads what one wrote, twice
  REFRAIN_SHARED(float, value, [1]);
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) value[0] = float(round);
    __syncthreads();
    out[threadIdx.x] += value[0];
    __syncthreads();
  }
}
__global__ void __launch_bounds__(32) copies(float* out) {
  REFRAIN_SHARED(float, to, [16]);
  REFRAIN_SHARED(float, from_shared, [4]);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < 16; ++i) out[100 + i] = float(i + 1);
  static_cast<void>(from_shared);
  for (int i = 0; i < 3; ++i) {
    cuda::cp_async16(to + 4 * i, out + 100 + 4 * i);
    cuda::cp_async_commit();
  }
  cuda::cp_async16(to + 12, out + 112, false);
  cuda::cp_async_commit();
  for (int i = 0; i < 16; ++i) out[i] = to[i];
  cuda::cp_async_wait<2>();
  for (int i = 0; i < 16; ++i) out[16 + i] = to[i];
  cuda::cp_async_wait<0>();
  for (int i = 0; i < 16; ++i) out[32 + i] = to[i];
}

// Wrong ones.
__global__ void __launch_bounds__(1024) reverse_without_barrier(float* out) {
  REFRAIN_SHARED(float, values, [1024]);
  values[threadIdx.x] = float(threadIdx.x);
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
__global__ void __launch_bounds__(1024) wrong_half(float* out) {  // reads what the other half wrote
  REFRAIN_SHARED(float, values, [32]);
  values[threadIdx.x] = float(threadIdx.x);
  __syncwarp(0xffffu << (16 * (threadIdx.x / 16)));
  out[threadIdx.x] = values[31 - threadIdx.x];
}
__global__ void __launch_bounds__(1024) overwrite_while_read(float* out) {  // one reader of many is forgotten easily
  REFRAIN_SHARED(float, value, [1]);
  if (threadIdx.x == 0) value[0] = 1;
  __syncthreads();
  out[threadIdx.x] = value[0];
  if (threadIdx.x == 100) value[0] = 2;
}
__global__ void __launch_bounds__(1024) count_without_atomic(float* out) { out[0] += 1; }
__global__ void __launch_bounds__(1024) blocks_overlap(float* out) {
  for (unsigned i = threadIdx.x; i <= blockDim.x; i += blockDim.x) out[blockIdx.x * blockDim.x + i] = float(blockIdx.x);
}
__global__ void __launch_bounds__(1024) shuffle_as_barrier(float* out) {
  REFRAIN_SHARED(float, values, [32]);
  values[threadIdx.x] = float(threadIdx.x);
  __shfl_xor_sync(kAllLanes, 1, 1);
  out[threadIdx.x] = values[31 - threadIdx.x];
}
__global__ void __launch_bounds__(32) copy_without_wait(float* out) {
  REFRAIN_SHARED(float, to, [128]);
  cuda::cp_async16(to + 4 * threadIdx.x, out + 1024 + 4 * threadIdx.x);
  cuda::cp_async_commit();
  __syncthreads();
  const float other = to[127 - threadIdx.x];
  cuda::cp_async_wait<0>();
  out[threadIdx.x] = other;
}
__global__ void __launch_bounds__(1024) two_barriers(float* out) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    out[0] = 1;
    __syncthreads();
  }
}
__global__ void __launch_bounds__(1024) lanes_gone(float* out) {
  if (threadIdx.x < 16) return;
  out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1.0f, 1);
}
__global__ void __launch_bounds__(1024) not_in_mask(float* out) { out[threadIdx.x] = __shfl_xor_sync(0xffu, 1.0f, 1); }
__global__ void __launch_bounds__(32) copy_at_exit(float* out) {
  REFRAIN_SHARED(float, to, [4]);
  cuda::cp_async16(to, out);
}
__global__ void __launch_bounds__(32) matrix_outside(float* out) {
  REFRAIN_DYNAMIC_SHARED(char, bytes);
  unsigned fragments[4];
  cuda::ldmatrix_x4(fragments, bytes + threadIdx.x * 32);
  out[threadIdx.x] = float(fragments[0]);
}
__global__ void __launch_bounds__(32) beyond_static(float* out) {
  REFRAIN_SHARED(float, values, [32]);
  values[threadIdx.x + 1] = 1;
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void __launch_bounds__(32) beyond_dynamic(float* out) {
  REFRAIN_DYNAMIC_SHARED(float, values);
  values[threadIdx.x + 1] = 1;
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void __launch_bounds__(32) spin(float* out) {
  while (*static_cast<volatile float*>(out) == 0) {}
}

__global__ void __launch_bounds__(32) mma(float* out, const float* a, const float* b, bool is_bf16) {
  // The tables of the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
  const unsigned lane = threadIdx.x, group = lane >> 2, in_group = lane % 4;
  unsigned fragment_a[4], fragment_b[2];
  const auto bits = [&](float x) -> unsigned {
    return is_bf16 ? unsigned(__bfloat16_as_ushort(__float2bfloat16_rn(x))) : unsigned(__half_as_ushort(__float2half_rn(x)));
  };
  for (unsigned i = 0; i < 8; i += 2) {
    const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    const unsigned column = in_group * 2 + (i < 4 ? 0 : 8);
    fragment_a[i / 2] = bits(a[row * 16 + column]) | bits(a[row * 16 + column + 1]) << 16;
  }
  for (unsigned i = 0; i < 4; i += 2) {
    const unsigned row = in_group * 2 + (i < 2 ? 0 : 8), column = group;
    fragment_b[i / 2] = bits(b[row * 8 + column]) | bits(b[(row + 1) * 8 + column]) << 16;
  }
  float d[4] = {1, 1, 1, 1};
  if (is_bf16) cuda::mma_m16n8k16_bf16(d, fragment_a, fragment_b);
  else cuda::mma_m16n8k16_f16(d, fragment_a, fragment_b);
  for (unsigned i = 0; i < 4; ++i) out[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = d[i] - 1;
}

__global__ void __launch_bounds__(32) matrices(float* out, int count, bool is_transposed) {
  REFRAIN_SHARED(uint4, rows, [32]);
  auto* values = reinterpret_cast<unsigned short*>(rows);
  for (unsigned i = threadIdx.x; i < 256; i += 32) values[i] = static_cast<unsigned short>(i);
  __syncthreads();
  unsigned four[4] = {}, two[2] = {};
  if (count == 4 && !is_transposed) cuda::ldmatrix_x4(four, rows + threadIdx.x);
  if (count == 4 && is_transposed) cuda::ldmatrix_x4_trans(four, rows + threadIdx.x);
  if (count == 2 && !is_transposed) cuda::ldmatrix_x2(two, rows + threadIdx.x % 16);
  if (count == 2 && is_transposed) cuda::ldmatrix_x2_trans(two, rows + threadIdx.x % 16);
  for (int m = 0; m < count; ++m) {
    const unsigned pair = count == 4 ? four[m] : two[m];
    out[threadIdx.x * 2 * unsigned(count) + 2 * unsigned(m)] = float(pair & 0xffff);
    out[threadIdx.x * 2 * unsigned(count) + 2 * unsigned(m) + 1] = float(pair >> 16);
  }
}

__global__ void __launch_bounds__(32) set_one(float* out) { *out = 1; }
__global__ void __launch_bounds__(32) copy_one(float* out, const float* from) { *out = *from; }

}  // namespace kernels

namespace {

constexpr std::size_t kFloats = 4096;

class Memory {
 public:
  explicit Memory(const std::vector<float>& values = std::vector<float>(kFloats)) {
    void* memory = nullptr;
    cuda::check_cuda(cudaMalloc(&memory, kFloats * sizeof(float)), "cudaMalloc");
    data = static_cast<float*>(memory);
    cuda::check_cuda(cudaMemcpy(data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Memory() { static_cast<void>(cudaFree(data)); }
  std::vector<float> values(std::size_t count = kFloats) const {
    std::vector<float> host(count);
    cuda::check_cuda(cudaMemcpy(host.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }
  float* data = nullptr;
};

using KernelFunction = void (*)(float*);
const std::map<std::string_view, KernelFunction>& all() {
  using namespace kernels;
#define REFRAIN_NAMED(name) {#name, name}
  static const std::map<std::string_view, KernelFunction> known = {
      REFRAIN_NAMED(reverse), REFRAIN_NAMED(shuffles), REFRAIN_NAMED(votes), REFRAIN_NAMED(block_sum), REFRAIN_NAMED(half_a_warp),
      REFRAIN_NAMED(early_exit), REFRAIN_NAMED(count), REFRAIN_NAMED(all_read), REFRAIN_NAMED(copies), REFRAIN_NAMED(reverse_without_barrier),
      REFRAIN_NAMED(wrong_half), REFRAIN_NAMED(overwrite_while_read), REFRAIN_NAMED(count_without_atomic), REFRAIN_NAMED(blocks_overlap),
      REFRAIN_NAMED(shuffle_as_barrier), REFRAIN_NAMED(copy_without_wait), REFRAIN_NAMED(two_barriers), REFRAIN_NAMED(lanes_gone),
      REFRAIN_NAMED(not_in_mask), REFRAIN_NAMED(copy_at_exit), REFRAIN_NAMED(matrix_outside), REFRAIN_NAMED(beyond_static),
      REFRAIN_NAMED(beyond_dynamic), REFRAIN_NAMED(spin)};
#undef REFRAIN_NAMED
  return known;
}

}  // namespace

std::vector<float> run_kernel(std::string_view name, int threads, int blocks, std::size_t shared_bytes) {
  const Memory out;
  cuda::launch(name, all().at(name), {dim3(unsigned(blocks)), dim3(unsigned(threads)), shared_bytes}, Cuda{}, out.data);
  return out.values();
}

std::string failure_of(std::string_view name, int threads, int blocks, std::size_t shared_bytes) {
  try {
    run_kernel(name, threads, blocks, shared_bytes);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<float> multiply(const std::vector<float>& a, const std::vector<float>& b, bool is_bf16) {
  const Memory out, left(a), right(b);
  cuda::launch("mma", kernels::mma, {dim3(1), dim3(32), 0}, Cuda{}, out.data, left.data, right.data, is_bf16);
  return out.values(128);
}

std::vector<float> load_matrices(int count, bool is_transposed) {
  const Memory out;
  cuda::launch("matrices", kernels::matrices, {dim3(1), dim3(32), 0}, Cuda{}, out.data, count, is_transposed);
  return out.values(std::size_t(64 * count));
}

float across_streams(bool is_ordered) {
  const Memory memory;
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t event = nullptr;
  cuda::check_cuda(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), "stream");
  cuda::check_cuda(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), "stream");
  cuda::check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  cuda::launch("set_one", kernels::set_one, {dim3(1), dim3(1), 0}, Cuda{.stream = first}, memory.data);
  cuda::check_cuda(cudaEventRecord(event, first), "record");
  if (is_ordered) cuda::check_cuda(cudaStreamWaitEvent(second, event, 0), "wait");
  cuda::launch("copy_one", kernels::copy_one, {dim3(1), dim3(1), 0}, Cuda{.stream = second}, memory.data + 1, static_cast<const float*>(memory.data));
  cuda::check_cuda(cudaStreamSynchronize(second), "synchronize");
  const float copied = memory.values(2)[1];
  static_cast<void>(cudaStreamDestroy(first));
  static_cast<void>(cudaStreamDestroy(second));
  static_cast<void>(cudaEventDestroy(event));
  return copied;
}

std::vector<float> before_and_after_waiting() {
  void* memory = nullptr;
  cuda::check_cuda(cudaHostAlloc(&memory, sizeof(float), cudaHostAllocMapped), "cudaHostAlloc");
  auto* value = static_cast<float*>(memory);
  *value = 0;
  cudaStream_t stream = nullptr;
  cuda::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cuda::launch("set_one", kernels::set_one, {dim3(1), dim3(1), 0}, Cuda{.stream = stream}, value);
  const float before = *value;
  cuda::check_cuda(cudaStreamSynchronize(stream), "synchronize");
  const std::vector<float> both = {before, *value};
  static_cast<void>(cudaStreamDestroy(stream));
  static_cast<void>(cudaFreeHost(memory));
  return both;
}

float follow_device_address() {
  const Memory memory;
  return *static_cast<volatile float*>(memory.data);
}

}  // namespace refrain::emulator_test
