// The functions of cuBLASLt that the backend calls, on the host: the same semantics, argument checks and alignment rules, one
// algorithm. It sums over k in f32 (f64 for f64) and rounds once, after alpha, beta and the bias, as the library does.
#include <refrain/core/half.h>
#include <refrain/kernels/emulator/libraries/fake.h>
#include <refrain/kernels/emulator/queue.h>

#include <cublasLt.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using refrain::bf16, refrain::f16;

constexpr std::uint64_t kAlgorithmMark = 0x52454652'41494e21;

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Layout {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld;
  std::int32_t batch = 1;
  std::int64_t batch_stride = 0;
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};

template <class T>
cublasStatus_t assign(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::uint64_t size_of(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

double read(cudaDataType type, const void* p, std::int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    case CUDA_R_32F: return static_cast<const float*>(p)[i];
    case CUDA_R_16F: return float(static_cast<const f16*>(p)[i]);
    default: return float(static_cast<const bf16*>(p)[i]);
  }
}

void write(cudaDataType type, void* p, std::int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(p)[i] = value; return;
    case CUDA_R_32F: static_cast<float*>(p)[i] = float(value); return;
    case CUDA_R_16F: static_cast<f16*>(p)[i] = f16(float(value)); return;
    default: static_cast<bf16*>(p)[i] = bf16(float(value));
  }
}

bool is_a_type(cudaDataType type) { return type == CUDA_R_64F || type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

// All of a call, taken when it is made.
struct Call {
  Operation op;
  Layout a, b, c, d;
  double alpha, beta;
  const void *a_data, *b_data, *c_data;
  void* d_data;
  std::int64_t m() const { return std::int64_t(d.rows); }
  std::int64_t n() const { return std::int64_t(d.cols); }
  std::int64_t k() const { return std::int64_t(op.transpose_a == CUBLAS_OP_N ? a.cols : a.rows); }
};

// The pairs of types the library has for f32 and f64 arithmetic, of those the engine knows.
cublasStatus_t check(const Operation& op, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool is_double = op.compute == CUBLAS_COMPUTE_64F;
  if (op.scale != (is_double ? CUDA_R_64F : CUDA_R_32F)) return CUBLAS_STATUS_INVALID_VALUE;
  if (a.type != b.type || c.type != d.type || (a.type == CUDA_R_64F) != is_double) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.type != a.type && !(size_of(a.type) == 2 && d.type == CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && op.epilogue != CUBLASLT_EPILOGUE_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool ta = op.transpose_a == CUBLAS_OP_T, tb = op.transpose_b == CUBLAS_OP_T;
  const std::uint64_t m = ta ? a.cols : a.rows, ka = ta ? a.rows : a.cols, kb = tb ? b.cols : b.rows, n = tb ? b.rows : b.cols;
  if (ka != kb || d.rows != m || d.cols != n || c.rows != m || c.cols != n) return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || ka == 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (a.batch != d.batch || b.batch != d.batch || c.batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Sum>
void run(const Call& call) {
  const bool ta = call.op.transpose_a == CUBLAS_OP_T, tb = call.op.transpose_b == CUBLAS_OP_T;
  const std::int64_t k = call.k();
  std::vector<Sum> row(static_cast<std::size_t>(k)), col(static_cast<std::size_t>(k));
  for (std::int64_t batch = 0; batch < call.d.batch; ++batch) {
    const std::int64_t a0 = batch * call.a.batch_stride, b0 = batch * call.b.batch_stride, c0 = batch * call.c.batch_stride, d0 = batch * call.d.batch_stride;
    for (std::int64_t j = 0; j < call.n(); ++j) {
      for (std::int64_t p = 0; p < k; ++p) col[std::size_t(p)] = Sum(read(call.b.type, call.b_data, b0 + (tb ? j + p * call.b.ld : p + j * call.b.ld)));
      for (std::int64_t i = 0; i < call.m(); ++i) {
        for (std::int64_t p = 0; p < k; ++p) row[std::size_t(p)] = Sum(read(call.a.type, call.a_data, a0 + (ta ? p + i * call.a.ld : i + p * call.a.ld)));
        Sum sum = 0;
        for (std::size_t p = 0; p < std::size_t(k); ++p) sum += row[p] * col[p];
        Sum value = Sum(call.alpha) * sum;
        if (call.beta != 0) value += Sum(call.beta) * Sum(read(call.c.type, call.c_data, c0 + i + j * call.c.ld));
        if (call.op.epilogue == CUBLASLT_EPILOGUE_BIAS) value += Sum(read(call.d.type, call.op.bias, i));
        write(call.d.type, call.d_data, d0 + i + j * call.d.ld, value);
      }
    }
  }
}

bool is_aligned(const void* address, std::uint64_t bytes) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; }

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int context;
  *handle = reinterpret_cast<cublasLtHandle_t>(&context);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_64F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
  Operation& op = *reinterpret_cast<Operation*>(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(op.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(op.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(op.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(op.bias, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  if (!is_a_type(type) || ld < std::int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{.type = type, .rows = rows, .cols = cols, .ld = ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t bytes) {
  Layout& l = *reinterpret_cast<Layout*>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(l.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(l.batch_stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  Preference& p = *reinterpret_cast<Preference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(p.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(p.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(p.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(p.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(p.alignments[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// The algorithm remembers the alignments and the workspace that it was chosen for, and cublasLtMatmul() holds the caller to them.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto layout = [](cublasLtMatrixLayout_t l) -> const Layout& { return *reinterpret_cast<Layout*>(l); };
  const cublasStatus_t status = check(*reinterpret_cast<Operation*>(operation), layout(a), layout(b), layout(c), layout(d));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference& p = *reinterpret_cast<Preference*>(preference);
  cublasLtMatmulHeuristicResult_t result{};
  result.algo.data[0] = kAlgorithmMark;
  for (int i = 0; i < 4; ++i) result.algo.data[1 + i] = p.alignments[i];
  result.algo.data[5] = p.workspace;
  result.workspaceSize = std::size_t(p.workspace);
  result.state = CUBLAS_STATUS_SUCCESS;
  results[0] = result;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data, cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (algorithm == nullptr || algorithm->data[0] != kAlgorithmMark) return CUBLAS_STATUS_INVALID_VALUE;
  Call call{.op = *reinterpret_cast<Operation*>(operation), .a = *reinterpret_cast<Layout*>(a), .b = *reinterpret_cast<Layout*>(b),
            .c = *reinterpret_cast<Layout*>(c), .d = *reinterpret_cast<Layout*>(d), .alpha = 0, .beta = 0, .a_data = a_data, .b_data = b_data, .c_data = c_data,
            .d_data = d_data};
  if (const cublasStatus_t status = check(call.op, call.a, call.b, call.c, call.d); status != CUBLAS_STATUS_SUCCESS) return status;
  const void* const addresses[] = {a_data, b_data, c_data, d_data};
  for (int i = 0; i < 4; ++i) {
    if (addresses[i] == nullptr || !is_aligned(addresses[i], algorithm->data[1 + i])) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (workspace_bytes < algorithm->data[5] || (workspace_bytes > 0 && (workspace == nullptr || !is_aligned(workspace, 256)))) return CUBLAS_STATUS_INVALID_VALUE;
  if (call.op.epilogue == CUBLASLT_EPILOGUE_BIAS && !is_aligned(call.op.bias, 16)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool is_double = call.op.compute == CUBLAS_COMPUTE_64F;
  call.alpha = read(is_double ? CUDA_R_64F : CUDA_R_32F, alpha, 0);
  call.beta = read(is_double ? CUDA_R_64F : CUDA_R_32F, beta, 0);
  refrain::emulator::submit(stream, [call, is_double] { is_double ? run<double>(call) : run<float>(call); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

const refrain::emulator::Fake& refrain::emulator::cublaslt_fake() {
#define REFRAIN_FUNCTION(name) {#name, address_of(::name)}
  static const Fake fake = {
      .file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
      .functions = {REFRAIN_FUNCTION(cublasLtCreate), REFRAIN_FUNCTION(cublasLtGetStatusName), REFRAIN_FUNCTION(cublasLtMatmul),
                    REFRAIN_FUNCTION(cublasLtMatmulAlgoGetHeuristic), REFRAIN_FUNCTION(cublasLtMatmulDescCreate),
                    REFRAIN_FUNCTION(cublasLtMatmulDescDestroy), REFRAIN_FUNCTION(cublasLtMatmulDescSetAttribute),
                    REFRAIN_FUNCTION(cublasLtMatmulPreferenceCreate), REFRAIN_FUNCTION(cublasLtMatmulPreferenceDestroy),
                    REFRAIN_FUNCTION(cublasLtMatmulPreferenceSetAttribute), REFRAIN_FUNCTION(cublasLtMatrixLayoutCreate),
                    REFRAIN_FUNCTION(cublasLtMatrixLayoutDestroy), REFRAIN_FUNCTION(cublasLtMatrixLayoutSetAttribute)}};
#undef REFRAIN_FUNCTION
  return fake;
}
