// Convolutions by cuDNN, loaded when the first one comes, by its functions for single operations. Its graphs would need an
// engine's notes to tell what these functions say outright of each algorithm: whether it is deterministic, and its workspace.
//
// An algorithm is chosen once a device, by shapes, dtype and workspace, and kept. Only deterministic ones that multiply and add:
// FFT and Winograd lose digits. f32 is kept to FMA, since tensor cores would make it TF32; 16-bit operands have f32 sums. A bias
// goes into the convolution's own rounding, or the convolution is left to our kernels; so is a weight's gradient in f32 of 16-bit
// operands, which cuDNN would round to 16 bits first.
#include <refrain/core/check.h>
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/convolution/cuda/cudnn.h>
#include <refrain/kernels/convolution/cuda/cudnn_functions.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

namespace refrain::cuda {

using namespace cudnn_functions;

namespace {

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// One convolution: y is of x and weight, with a bias perhaps; `out` is whichever of the three is made.
struct Request {
  std::string_view name;
  ConvolutionGeometry g;
  DType dtype;
  const void *x, *weight, *y;
  void* out;
  GemmEngine engine;
  const void* bias = nullptr;
  std::byte* workspace = nullptr;
  std::size_t workspace_bytes = 0;

  // It starts at a multiple of 256. What is left of the bytes does not hang on where they lie.
  void set_workspace(const OptionalOut& given) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t bytes = given.has_bytes() ? std::size_t(given.bytes()) : 0;
    if (bytes < 2 * kAlignment) return;
    workspace_bytes = (bytes - (kAlignment - 1)) / kAlignment * kAlignment;
    workspace = given.address() + (kAlignment - reinterpret_cast<std::uintptr_t>(given.address()) % kAlignment) % kAlignment;
  }
  // Why cuDNN is not asked; empty where it is.
  std::string problem() const {
    const std::int64_t sizes[] = {g.B * g.C * g.H * g.W, g.O * g.window(), g.B * g.O * g.Y() * g.X()};
    if (std::min({sizes[0], sizes[1], sizes[2]}) == 0) return "a tensor is empty";
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (std::max({sizes[0], sizes[1], sizes[2], g.padding, g.stride}) > kMost) return "a tensor has 2^31 elements or more";
    for (const void* address : {x, weight, y, bias}) {
      if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return "a tensor does not start at a multiple of 16 bytes";
    }
    return {};
  }
};

// A convolution that cuDNN is ready to run, or why it is not.
struct Plan {
  TensorLayout x, y, bias;
  FilterLayout weight;
  Operation operation;
  ActivationWord identity;
  int algorithm = 0;
  std::size_t workspace_bytes = 0;
  std::string problem;
};

struct Scales {
  float f[2] = {1, 0};
  double d[2] = {1, 0};
  const void* at(DType dtype, int i) const { return dtype == DType::f64 ? static_cast<const void*>(&d[i]) : &f[i]; }
};
constexpr Scales kScales;

struct Forward {
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  using Found = cudnnConvolutionFwdAlgoPerf_t;
  // The one that adds a bias without an activation is prescribed.
  static bool is_allowed(Algorithm a, bool has_bias) {
    return a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
           (!has_bias && (a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM || a == CUDNN_CONVOLUTION_FWD_ALGO_GEMM));
  }
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int wanted, int* num, Found* found) {
    return dnn().cudnnGetConvolutionForwardAlgorithm_v7(handle, p.x.get(), p.weight.get(), p.operation.get(), p.y.get(), wanted,
                                                        num, found);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Plan& p, Algorithm a, std::size_t* bytes) {
    return dnn().cudnnGetConvolutionForwardWorkspaceSize(handle, p.x.get(), p.weight.get(), p.operation.get(), p.y.get(), a,
                                                         bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Plan& p, const Request& r) {
    const void *one = kScales.at(r.dtype, 0), *zero = kScales.at(r.dtype, 1);
    const Algorithm a = Algorithm(p.algorithm);
    if (r.bias == nullptr) {
      return dnn().cudnnConvolutionForward(handle, one, p.x.get(), r.x, p.weight.get(), r.weight, p.operation.get(), a,
                                           r.workspace, p.workspace_bytes, zero, p.y.get(), r.out);
    }
    return dnn().cudnnConvolutionBiasActivationForward(handle, one, p.x.get(), r.x, p.weight.get(), r.weight, p.operation.get(),
                                                       a, r.workspace, p.workspace_bytes, zero, p.y.get(), r.out, p.bias.get(),
                                                       r.bias, p.identity.get(), p.y.get(), r.out);
  }
};

struct BackwardInput {
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  using Found = cudnnConvolutionBwdDataAlgoPerf_t;
  static bool is_allowed(Algorithm a, bool) { return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1; }
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int wanted, int* num, Found* found) {
    return dnn().cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, p.weight.get(), p.y.get(), p.operation.get(), p.x.get(),
                                                             wanted, num, found);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Plan& p, Algorithm a, std::size_t* bytes) {
    return dnn().cudnnGetConvolutionBackwardDataWorkspaceSize(handle, p.weight.get(), p.y.get(), p.operation.get(), p.x.get(), a,
                                                              bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Plan& p, const Request& r) {
    return dnn().cudnnConvolutionBackwardData(handle, kScales.at(r.dtype, 0), p.weight.get(), r.weight, p.y.get(), r.y,
                                              p.operation.get(), Algorithm(p.algorithm), r.workspace, p.workspace_bytes,
                                              kScales.at(r.dtype, 1), p.x.get(), r.out);
  }
};

struct BackwardWeight {
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  using Found = cudnnConvolutionBwdFilterAlgoPerf_t;
  static bool is_allowed(Algorithm a, bool) { return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1; }
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int wanted, int* num, Found* found) {
    return dnn().cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, p.x.get(), p.y.get(), p.operation.get(), p.weight.get(),
                                                               wanted, num, found);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Plan& p, Algorithm a, std::size_t* bytes) {
    return dnn().cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, p.x.get(), p.y.get(), p.operation.get(), p.weight.get(),
                                                                a, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Plan& p, const Request& r) {
    return dnn().cudnnConvolutionBackwardFilter(handle, kScales.at(r.dtype, 0), p.x.get(), r.x, p.y.get(), r.y, p.operation.get(),
                                                Algorithm(p.algorithm), r.workspace, p.workspace_bytes, kScales.at(r.dtype, 1),
                                                p.weight.get(), r.out);
  }
};

// All that an algorithm's choice may hang on.
auto key_of(const Request& r) {
  const ConvolutionGeometry& g = r.g;
  return std::tuple(r.dtype, r.bias != nullptr, g.B, g.C, g.H, g.W, g.O, g.P, g.Q, g.stride, g.padding, r.workspace_bytes);
}
using Key = decltype(key_of(std::declval<Request>()));

class Planner {
 public:
  explicit Planner(int device) {
    if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess)
      fail<CudaError>("choosing the CUDA device: ", cudaGetErrorName(error));
    check_status(dnn().cudnnCreate(&handle_), "cuDNN", "cudnnCreate");
  }

  // Why it was not run; empty where it was.
  template <class Direction>
  std::string run(const Cuda& device, const Request& r) {
    const std::scoped_lock lock(mutex_);  // the handle has one stream at a time
    std::map<Key, Plan>& plans = plans_[std::is_same_v<Direction, Forward>         ? 0
                                        : std::is_same_v<Direction, BackwardInput> ? 1
                                                                                   : 2];
    auto at = plans.find(key_of(r));
    if (at == plans.end()) at = plans.emplace(key_of(r), make_plan<Direction>(r)).first;
    Plan& plan = at->second;
    if (!plan.problem.empty()) return plan.problem;
    check_status(dnn().cudnnSetStream(handle_, static_cast<cudaStream_t>(device.stream)), r.name, "cudnnSetStream");
    const cudnnStatus_t status = Direction::run(handle_, plan, r);
    if (is_refusal(status))
      plan.problem = concat("it refused what it had offered: ", dnn().cudnnGetErrorString(status));
    else
      check_status(status, r.name, "a convolution of cuDNN");
    return plan.problem;
  }

 private:
  template <class Direction>
  Plan make_plan(const Request& r) const {
    Plan plan;
    describe(plan, r);
    choose<Direction>(plan, r);
    return plan;
  }

  static void describe(Plan& plan, const Request& r) {
    const auto set = [&](const TensorLayout& layout, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
      check_status(
          dnn().cudnnSetTensor4dDescriptor(layout.get(), CUDNN_TENSOR_NCHW, type_of(r.dtype), int(n), int(c), int(h), int(w)),
          r.name, "cudnnSetTensor4dDescriptor");
    };
    const ConvolutionGeometry& g = r.g;
    for (TensorLayout* layout : {&plan.x, &plan.y, &plan.bias})
      *layout = created<TensorLayout>(dnn().cudnnCreateTensorDescriptor, r.name);
    set(plan.x, g.B, g.C, g.H, g.W);
    set(plan.y, g.B, g.O, g.Y(), g.X());
    set(plan.bias, 1, g.O, 1, 1);
    plan.weight = created<FilterLayout>(dnn().cudnnCreateFilterDescriptor, r.name);
    check_status(dnn().cudnnSetFilter4dDescriptor(plan.weight.get(), type_of(r.dtype), CUDNN_TENSOR_NCHW, int(g.O), int(g.C),
                                                  int(g.P), int(g.Q)),
                 r.name, "cudnnSetFilter4dDescriptor");
    plan.operation = created<Operation>(dnn().cudnnCreateConvolutionDescriptor, r.name);
    check_status(
        dnn().cudnnSetConvolution2dDescriptor(plan.operation.get(), int(g.padding), int(g.padding), int(g.stride), int(g.stride),
                                              1, 1, CUDNN_CROSS_CORRELATION, type_of(accumulator_dtype(r.dtype))),
        r.name, "cudnnSetConvolution2dDescriptor");
    plan.identity = created<ActivationWord>(dnn().cudnnCreateActivationDescriptor, r.name);
    check_status(dnn().cudnnSetActivationDescriptor(plan.identity.get(), CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0),
                 r.name, "cudnnSetActivationDescriptor");
  }

  template <class Direction>
  void choose(Plan& plan, const Request& r) const {
    const bool is_half = is_16_bit(r.dtype);
    const auto set_math = [&](cudnnMathType_t math) {
      check_status(dnn().cudnnSetConvolutionMathType(plan.operation.get(), math), r.name, "cudnnSetConvolutionMathType");
    };
    set_math(is_half ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH);
    std::array<typename Direction::Found, 8> found{};
    int num = 0;
    const cudnnStatus_t status = Direction::find(handle_, plan, int(found.size()), &num, found.data());
    if (!is_refusal(status)) check_status(status, r.name, "asking cuDNN for algorithms");
    for (int i = 0; i < num; ++i) {
      const auto& one = found[std::size_t(i)];
      if (one.status != CUDNN_STATUS_SUCCESS || one.determinism != CUDNN_DETERMINISTIC ||
          !Direction::is_allowed(one.algo, r.bias != nullptr))
        continue;
      // An algorithm is one of its kind of arithmetic. What is not 16-bit stays with FMA, whatever is answered.
      if (one.mathType == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) continue;
      set_math(is_half ? one.mathType : CUDNN_FMA_MATH);
      std::size_t bytes = 0;
      if (Direction::measure(handle_, plan, one.algo, &bytes) != CUDNN_STATUS_SUCCESS || bytes > r.workspace_bytes) continue;
      plan.algorithm = int(one.algo);
      plan.workspace_bytes = bytes;
      return;
    }
    plan.problem = concat("it has no deterministic algorithm within a workspace of ", r.workspace_bytes, " bytes");
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::array<std::map<Key, Plan>, 3> plans_;  // by direction
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

template <class Direction>
bool run_request(const Cuda& device, const Request& r, std::string problem) {
  if (r.engine != GemmEngine::automatic && r.engine != GemmEngine::cudnn) return false;
  dnn();  // all functions are looked up before the library is said to be usable
  const bool is_by_name = r.engine == GemmEngine::cudnn;
  if (is_by_name)
    cudnn_library().require(r.name);
  else if (!cudnn_library().is_usable())
    return false;
  if (problem.empty()) problem = r.problem();
  if (problem.empty()) problem = planner(device.index).run<Direction>(device, r);
  check(problem.empty() || !is_by_name, r.name, ": cuDNN does not offer this convolution: ", problem);
  return problem.empty();
}

}  // namespace

bool run_cudnn(const Cuda& device, const Conv2dForward& k) {
  Request r{.name = k.name,
            .g = ConvolutionGeometry::of(k.name, k.x.shape(), k.weight.shape(), k.stride, k.padding),
            .dtype = k.out.dtype(),
            .x = k.x.address(),
            .weight = k.weight.address(),
            .y = k.out.address(),
            .out = k.out.address(),
            .engine = k.engine,
            .bias = k.bias.address()};
  r.set_workspace(k.workspace);
  const bool is_wide = k.bias && k.bias.dtype() != k.out.dtype();
  return run_request<Forward>(device, r, is_wide ? "the bias has another dtype" : "");
}

bool run_cudnn(const Cuda& device, const Conv2dBackwardInput& k) {
  Request r{.name = k.name,
            .g = ConvolutionGeometry::of(k.name, k.out.shape(), k.weight.shape(), k.stride, k.padding),
            .dtype = k.out.dtype(),
            .x = k.out.address(),
            .weight = k.weight.address(),
            .y = k.grad_out.address(),
            .out = k.out.address(),
            .engine = k.engine};
  r.set_workspace(k.workspace);
  return run_request<BackwardInput>(device, r, {});
}

bool run_cudnn(const Cuda& device, const Conv2dBackwardWeight& k) {
  Request r{.name = k.name,
            .g = ConvolutionGeometry::of(k.name, k.x.shape(), k.out.shape(), k.stride, k.padding),
            .dtype = k.grad_out.dtype(),
            .x = k.x.address(),
            .weight = k.out.address(),
            .y = k.grad_out.address(),
            .out = k.out.address(),
            .engine = k.engine};
  r.set_workspace(k.workspace);
  const bool is_wide = k.out.dtype() != k.grad_out.dtype();
  return run_request<BackwardWeight>(device, r, is_wide ? "the weight's gradient has another dtype" : "");
}

}  // namespace refrain::cuda
