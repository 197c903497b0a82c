#include <refrain/core/cuda/platform.cuh>

#include <refrain/core/cuda/strided.cuh>
#include <refrain/tests/cuda/strided_cases.h>

namespace refrain {

namespace strided_test_kernels {

__global__ __launch_bounds__(256) void offsets(cuda::StridedIndex<2> index, std::int32_t* to, std::int32_t* from) {
  const std::uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i >= index.numel) return;
  std::int32_t at[2];
  index.offsets(i, at);
  to[i] = at[0];
  from[i] = at[1];
}

__global__ __launch_bounds__(256) void quotients(cuda::Divisor divisor, const std::uint32_t* numbers, std::uint32_t* out,
                                                 std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i < count) out[i] = divisor.quotient(numbers[i]);
}

// Memory of the device for one call.
class Memory {
 public:
  explicit Memory(std::size_t bytes) { cuda::check_cuda(cudaMalloc(&address_, bytes), "cudaMalloc"); }
  ~Memory() { cudaFree(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  void* address_ = nullptr;
};

}  // namespace strided_test_kernels

StridedOffsets strided_offsets(const Shape& shape, const Strides& to, const Strides& from, std::int64_t limit) {
  using namespace strided_test_kernels;
  StridedOffsets result;
  const Memory memory(2 * std::size_t(numel_of(shape)) * sizeof(std::int32_t));
  cuda::for_each_part<2>(
      cuda::MergedView<2>(shape, {to, from}),
      [&](const cuda::MergedView<2>& part, const std::array<std::int64_t, 2>& starts) {
        ++result.num_parts;
        const std::size_t numel = std::size_t(part.numel());
        const dim3 grid(unsigned((numel + 255) / 256));
        cuda::launch("offsets", offsets, {.grid = grid, .block = 256}, Cuda{}, cuda::StridedIndex<2>(part),
                     memory.as<std::int32_t>(), memory.as<std::int32_t>() + numel);
        std::vector<std::int32_t> both(2 * numel);
        cuda::check_cuda(cudaMemcpy(both.data(), memory.as<void>(), both.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost),
                         "cudaMemcpy");
        for (std::size_t i = 0; i < numel; ++i)
          result.to.push_back(starts[0] + both[i]), result.from.push_back(starts[1] + both[numel + i]);
      },
      {}, limit);
  return result;
}

std::vector<std::uint32_t> quotients(const std::vector<std::uint32_t>& numbers, std::int64_t divisor) {
  using namespace strided_test_kernels;
  const std::size_t bytes = numbers.size() * sizeof(std::uint32_t);
  const Memory in(bytes), out(bytes);
  std::vector<std::uint32_t> result(numbers.size());
  cuda::check_cuda(cudaMemcpy(in.as<void>(), numbers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda::launch("quotients", strided_test_kernels::quotients, {.grid = dim3(unsigned((numbers.size() + 255) / 256)), .block = 256},
               Cuda{}, cuda::Divisor(divisor), in.as<std::uint32_t>(), out.as<std::uint32_t>(), std::uint32_t(numbers.size()));
  cuda::check_cuda(cudaMemcpy(result.data(), out.as<void>(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return result;
}

}  // namespace refrain
