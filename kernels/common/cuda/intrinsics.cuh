// All inline PTX. Each wrapper has a device body and, for the emulator, a model (kernels/emulator) under one signature.
#pragma once

#include <refrain/core/cuda/platform.cuh>

#if defined(REFRAIN_EMULATED)
#include <refrain/kernels/emulator/async_copy.h>
#include <refrain/kernels/emulator/tensor_core.h>
#endif

namespace refrain::cuda {

#if defined(REFRAIN_EMULATED)

inline void cp_async16(void* to, const void* from, bool is_wanted = true, REFRAIN_EMULATOR_SITE) {
  emulator::cp_async(to, from, 16, is_wanted, site);
}
inline void cp_async_commit() { emulator::cp_async_commit(); }
template <int kPending>
void cp_async_wait() {
  emulator::cp_async_wait(kPending);
}
inline void ldmatrix_x4(unsigned (&fragments)[4], const void* row, REFRAIN_EMULATOR_SITE) { emulator::ldmatrix(fragments, row, 4, false, site); }
inline void ldmatrix_x2(unsigned (&fragments)[2], const void* row, REFRAIN_EMULATOR_SITE) { emulator::ldmatrix(fragments, row, 2, false, site); }
inline void ldmatrix_x4_trans(unsigned (&fragments)[4], const void* row, REFRAIN_EMULATOR_SITE) { emulator::ldmatrix(fragments, row, 4, true, site); }
inline void ldmatrix_x2_trans(unsigned (&fragments)[2], const void* row, REFRAIN_EMULATOR_SITE) { emulator::ldmatrix(fragments, row, 2, true, site); }
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], REFRAIN_EMULATOR_SITE) {
  emulator::mma_m16n8k16(d, a, b, true, site);
}
inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], REFRAIN_EMULATOR_SITE) {
  emulator::mma_m16n8k16(d, a, b, false, site);
}
inline float exp2_approximate(float x) { return std::exp2(x); }

#else

// nvcc's host pass reads device functions too, and knows no PTX.
#if defined(__CUDA_ARCH__)
#define REFRAIN_PTX(...) asm volatile(__VA_ARGS__)
#else
#define REFRAIN_PTX(...) static_cast<void>(0)
#endif

__device__ __forceinline__ unsigned shared_address([[maybe_unused]] const void* address) {
#if defined(__CUDA_ARCH__)
  return static_cast<unsigned>(__cvta_generic_to_shared(address));
#else
  return 0;
#endif
}

// 16 bytes of global memory into shared memory, both aligned to 16, past the registers; zeros, and nothing read, unless wanted.
__device__ __forceinline__ void cp_async16(void* to, [[maybe_unused]] const void* from, bool is_wanted = true) {
  [[maybe_unused]] const unsigned shared = shared_address(to);
  [[maybe_unused]] const int num_read = is_wanted ? 16 : 0;
  REFRAIN_PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(from), "r"(num_read) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { REFRAIN_PTX("cp.async.commit_group;\n" ::: "memory"); }
// Returns when all but the latest kPending groups of the calling thread's copies have landed.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  REFRAIN_PTX("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// 8x8 matrices of 16-bit elements from shared memory: lane 8 m + r gives the address of row r of matrix m, and gets elements
// 2 (lane % 4) and the next of row lane / 4 of each; of the transposed matrices with _trans.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&fragments)[4], const void* row) {
  [[maybe_unused]] const unsigned shared = shared_address(row);
  REFRAIN_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
              : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3]) : "r"(shared) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(unsigned (&fragments)[2], const void* row) {
  [[maybe_unused]] const unsigned shared = shared_address(row);
  REFRAIN_PTX("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n" : "=r"(fragments[0]), "=r"(fragments[1]) : "r"(shared) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&fragments)[4], const void* row) {
  [[maybe_unused]] const unsigned shared = shared_address(row);
  REFRAIN_PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
              : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3]) : "r"(shared) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&fragments)[2], const void* row) {
  [[maybe_unused]] const unsigned shared = shared_address(row);
  REFRAIN_PTX("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n" : "=r"(fragments[0]), "=r"(fragments[1]) : "r"(shared) : "memory");
}

// d[16, 8] += a[16, 16] b[16, 8] by the tensor cores, sums in f32.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  REFRAIN_PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  REFRAIN_PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 2^x in one instruction, to 2 units of the last place; what is below the least normal number is 0.
__device__ __forceinline__ float exp2_approximate([[maybe_unused]] float x) {
  float y = 0;
#if defined(__CUDA_ARCH__)
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

#endif

}  // namespace refrain::cuda
