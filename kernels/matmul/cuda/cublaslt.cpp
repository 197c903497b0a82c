// Products by cuBLASLt, which is loaded when the first one comes. Its matrices are column-major: a row-major C = A B is given to
// it as Cᵀ = Bᵀ Aᵀ, the same bytes.
//
// The algorithm for a product is asked for once a device, by its sizes, layouts, types, alignments and workspace, and kept.
// Of the epilogues only the bias has our semantics: GELU there reads the sums before they are rounded, so that an activation
// rebuilt from the saved pre-activation would have other bits. Activations are a pass of their own.
#include <refrain/core/check.h>
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/matmul/cuda/product.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace refrain::cuda {

namespace {

// The functions that are used, by their own names.
struct Functions {
#define REFRAIN_FUNCTION(name) decltype(&::name) name = cublaslt_library().find<decltype(&::name)>(#name)
  REFRAIN_FUNCTION(cublasLtCreate);
  REFRAIN_FUNCTION(cublasLtGetStatusName);
  REFRAIN_FUNCTION(cublasLtMatmul);
  REFRAIN_FUNCTION(cublasLtMatmulAlgoGetHeuristic);
  REFRAIN_FUNCTION(cublasLtMatmulDescCreate);
  REFRAIN_FUNCTION(cublasLtMatmulDescDestroy);
  REFRAIN_FUNCTION(cublasLtMatmulDescSetAttribute);
  REFRAIN_FUNCTION(cublasLtMatmulPreferenceCreate);
  REFRAIN_FUNCTION(cublasLtMatmulPreferenceDestroy);
  REFRAIN_FUNCTION(cublasLtMatmulPreferenceSetAttribute);
  REFRAIN_FUNCTION(cublasLtMatrixLayoutCreate);
  REFRAIN_FUNCTION(cublasLtMatrixLayoutDestroy);
  REFRAIN_FUNCTION(cublasLtMatrixLayoutSetAttribute);
#undef REFRAIN_FUNCTION
};
const Functions& lt() {
  static const Functions functions;
  return functions;
}

void check_status(cublasStatus_t status, std::string_view name, std::string_view call) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] fail<CudaError>(name, ": ", call, ": ", lt().cublasLtGetStatusName(status));
}

template <class Handle, auto destroy>  // destroy: a member of Functions
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { static_cast<void>((lt().*destroy)(handle)); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, &Functions::cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &Functions::cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &Functions::cublasLtMatmulPreferenceDestroy>;

cudaDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// What an address is a multiple of, at most 16: more is not asked, so that bits do not hang on where a tensor happens to lie.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return std::uint32_t(std::min<std::uintptr_t>(16, bits & (~bits + 1)));
}

// A workspace must start at a multiple of 256. What is left of one does not hang on where it lies.
struct Workspace {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  explicit Workspace(const Product& p) {
    constexpr std::uint64_t kAlignment = 256;
    if (p.workspace == nullptr || p.workspace_bytes < std::int64_t(2 * kAlignment)) return;
    bytes = (std::uint64_t(p.workspace_bytes) - (kAlignment - 1)) / kAlignment * kAlignment;
    const auto address = reinterpret_cast<std::uintptr_t>(p.workspace);
    data = static_cast<std::byte*>(p.workspace) + (kAlignment - address % kAlignment) % kAlignment;
  }
};

// All that an algorithm's choice may hang on.
auto key_of(const Product& p, const void* d) {
  return std::tuple(p.dtype, p.c_dtype, p.bias != nullptr, p.beta == 0, p.m, p.n, p.k, p.a.ld, p.a.is_transposed, p.b.ld, p.b.is_transposed, p.ldc,
                    p.batch[2], p.a.batch_strides[2], p.b.batch_strides[2], p.c_batch_stride, alignment_of(p.a.data), alignment_of(p.b.data),
                    std::min(alignment_of(p.c), alignment_of(d)), Workspace(p).bytes);
}
using Key = decltype(key_of(std::declval<Product>(), nullptr));

// A product that cuBLASLt is ready to run; without an algorithm one that it does not offer.
struct Plan {
  Operation operation;
  Layout a, b, c;  // of the row-major matrices of these names
  cublasLtMatmulAlgo_t algorithm;
  bool is_offered = false;
};

Layout new_layout(const Product& p, DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t ld, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t handle = nullptr;
  check_status(lt().cublasLtMatrixLayoutCreate(&handle, type_of(dtype), std::uint64_t(rows), std::uint64_t(cols), ld), p.name,
               "cublasLtMatrixLayoutCreate");
  Layout layout(handle);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    check_status(lt().cublasLtMatrixLayoutSetAttribute(handle, attribute, &value, sizeof value), p.name,
                 "cublasLtMatrixLayoutSetAttribute");
  };
  if (p.batch[2] > 1) {
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t(p.batch[2]));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  }
  return layout;
}

// As stored, an operand's rows are cuBLASLt's columns.
Layout new_layout(const Product& p, const ProductOperand& operand, std::int64_t rows, std::int64_t cols) {
  const bool t = operand.is_transposed;
  return new_layout(p, p.dtype, t ? rows : cols, t ? cols : rows, operand.ld, operand.batch_strides[2]);
}

class Planner {
 public:
  explicit Planner(int device) {
    if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) fail<CudaError>("choosing the CUDA device: ", cudaGetErrorName(error));
    check_status(lt().cublasLtCreate(&handle_), "cuBLASLt", "cublasLtCreate");
  }

  bool run(const Cuda& device, const Product& p) {
    void* d = p.pre_activation != nullptr ? p.pre_activation : p.c;
    const std::scoped_lock lock(mutex_);  // a plan's bias is set for each product
    auto [at, is_new] = plans_.try_emplace(key_of(p, d));
    Plan& plan = at->second;
    if (is_new) plan = make_plan(p, d);
    if (!plan.is_offered) return false;
    if (p.bias != nullptr) set(plan, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    const float alpha = float(p.alpha), beta = float(p.beta);
    const bool is_double = p.dtype == DType::f64;
    const Workspace workspace(p);
    const void* a_scale = is_double ? static_cast<const void*>(&p.alpha) : &alpha;
    const void* c_scale = is_double ? static_cast<const void*>(&p.beta) : &beta;
    check_status(lt().cublasLtMatmul(handle_, plan.operation.get(), a_scale, p.b.data, plan.b.get(), p.a.data, plan.a.get(), c_scale,
                                     p.beta == 0 ? d : p.c, plan.c.get(), d, plan.c.get(), &plan.algorithm, workspace.data,
                                     std::size_t(workspace.bytes), static_cast<cudaStream_t>(device.stream)),
                 p.name, "cublasLtMatmul");
    return true;
  }

 private:
  template <class V>
  static void set(const Plan& plan, const Product& p, cublasLtMatmulDescAttributes_t attribute, V value) {
    check_status(lt().cublasLtMatmulDescSetAttribute(plan.operation.get(), attribute, &value, sizeof value), p.name,
                 "cublasLtMatmulDescSetAttribute");
  }

  Plan make_plan(const Product& p, const void* d) const {
    const bool is_double = p.dtype == DType::f64;
    Plan plan;
    cublasLtMatmulDesc_t operation = nullptr;
    // Without _FAST_TF32: f32 in f32.
    check_status(lt().cublasLtMatmulDescCreate(&operation, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                               is_double ? CUDA_R_64F : CUDA_R_32F),
                 p.name, "cublasLtMatmulDescCreate");
    plan.operation.reset(operation);
    set(plan, p, CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.b.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(plan, p, CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.a.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (p.bias != nullptr) {
      set(plan, p, CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t(CUBLASLT_EPILOGUE_BIAS));
      set(plan, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    plan.a = new_layout(p, p.a, p.m, p.k);
    plan.b = new_layout(p, p.b, p.k, p.n);
    plan.c = new_layout(p, p.c_dtype, p.n, p.m, p.ldc, p.c_batch_stride);

    cublasLtMatmulPreference_t handle = nullptr;
    check_status(lt().cublasLtMatmulPreferenceCreate(&handle), p.name, "cublasLtMatmulPreferenceCreate");
    const Preference preference(handle);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_status(lt().cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof value), p.name,
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Workspace(p).bytes);
    // Partial sums in f32 and added by a kernel of their own, never in place: the same bits every time.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.beta == 0 ? d : p.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(d));

    cublasLtMatmulHeuristicResult_t result{};
    int num_results = 0;
    const cublasStatus_t status =
        lt().cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
                                            handle, 1, &result, &num_results);
    plan.is_offered = status == CUBLAS_STATUS_SUCCESS && num_results > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_status(status, p.name, "cublasLtMatmulAlgoGetHeuristic");
    plan.algorithm = result.algo;
    return plan;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Plan> plans_;
};

// One a device, made when first asked for. Never destroyed: at exit the driver may be gone before.
Planner& planner(int device) {
  static std::mutex mutex;
  static auto& planners = *new std::map<int, std::unique_ptr<Planner>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Planner>& found = planners[device];
  if (!found) found = std::make_unique<Planner>(device);
  return *found;
}

}  // namespace

bool run_cublaslt_product(const Cuda& device, const Product& p) {
  if (p.alpha == 0 || p.k == 0 || p.row_bias != nullptr || p.batch[0] != 1 || p.batch[1] != 1) return false;
  // A bias has C's type there, and its address is that of a vector.
  if (p.bias != nullptr && (p.bias_dtype != p.c_dtype || alignment_of(p.bias) < 16)) return false;
  if (p.pre_activation != nullptr && p.activation == Activation::none) return false;
  lt();  // all functions are looked up before the library is said to be usable
  if (!cublaslt_library().is_usable() || !planner(device.index).run(device, p)) return false;
  if (p.activation == Activation::none) return true;
  const void* pre = p.pre_activation != nullptr ? p.pre_activation : p.c;
  run_activation(device, p.name, p.c_dtype, p.activation, pre, p.c, p.m, p.n, p.ldc);
  return true;
}

}  // namespace refrain::cuda
