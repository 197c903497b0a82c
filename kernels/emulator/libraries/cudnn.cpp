// The functions of cuDNN that the backend calls, on the host: argument checks, and answers to which algorithms there are that
// tempt a caller to what the engine must not take, faster ones first: not deterministic, in other arithmetic, or of large
// workspaces.
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/libraries/cudnn.h>
#include <refrain/kernels/emulator/libraries/cudnn_types.h>
#include <refrain/kernels/emulator/libraries/fake.h>
#include <refrain/kernels/emulator/queue.h>

#include <initializer_list>

using namespace refrain::emulator;

namespace {

struct Context {
  cudaStream_t stream = nullptr;
};

template <class T, class Handle>
T& behind(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}
template <class T, class Handle>
cudnnStatus_t create(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new T);
  return CUDNN_STATUS_SUCCESS;
}
template <class T, class Handle>
cudnnStatus_t destroy(Handle handle) {
  delete reinterpret_cast<T*>(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check(const CudnnTensor& x, const CudnnTensor& filter, const CudnnConvolution& c, const CudnnTensor& y) {
  if (x.type != filter.type || x.type != y.type) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
  if ((x.type == CUDNN_DATA_DOUBLE) != (c.compute == CUDNN_DATA_DOUBLE)) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
  if (x.numel() <= 0 || filter.numel() <= 0 || y.numel() <= 0) return CUDNN_STATUS_BAD_PARAM;
  if (y.n != x.n || filter.c != x.c || filter.n != y.c) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  if (y.h != (x.h + 2 * c.padding - filter.h) / c.stride + 1 || y.w != (x.w + 2 * c.padding - filter.w) / c.stride + 1) {
    return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  }
  return c.padding < filter.h && c.padding < filter.w ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED_PADDING;
}

bool is_half(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }

// Algorithm 1 of each direction changes layouts for tensor cores, and needs a table elsewhere; explicit columns are a workspace.
std::int64_t workspace_bytes(CudnnDirection direction, int algorithm, const CudnnTensor& x, const CudnnTensor& filter,
                             const CudnnConvolution& c, const CudnnTensor& y) {
  if (algorithm == 1)
    return is_half(x.type) && c.math == CUDNN_TENSOR_OP_MATH ? x.bytes() + y.bytes() : 4 * filter.c * filter.h * filter.w;
  if (direction == CudnnDirection::forward && algorithm == CUDNN_CONVOLUTION_FWD_ALGO_GEMM)
    return filter.bytes() / filter.n * y.h * y.w;
  return 0;
}

// `algorithms`, the fastest first.
template <class Found>
cudnnStatus_t find(CudnnDirection direction, const CudnnTensor& x, const CudnnTensor& filter, const CudnnConvolution& c,
                   const CudnnTensor& y, std::initializer_list<decltype(Found::algo)> algorithms, int wanted, int* num,
                   Found* found) {
  ++cudnn_record().num_choices;
  *num = 0;
  if (const cudnnStatus_t status = check(x, filter, c, y); status != CUDNN_STATUS_SUCCESS) return status;
  for (const auto algorithm : algorithms) {
    if (*num == wanted) break;
    // Those that the headers call so, and, to see whether the answer is heeded, the one with explicit columns.
    const bool is_exact = direction == CudnnDirection::forward ? int(algorithm) != CUDNN_CONVOLUTION_FWD_ALGO_GEMM
                                                               : algorithm != 0 && algorithm != 3;
    // Of f32 the answer may be the default arithmetic, although FMA was asked for: who takes it over has TF32.
    found[(*num)++] = {.algo = algorithm,
                       .status = CUDNN_STATUS_SUCCESS,
                       .time = float(*num),
                       .memory = std::size_t(workspace_bytes(direction, int(algorithm), x, filter, c, y)),
                       .determinism = is_exact ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC,
                       .mathType = is_half(x.type) ? c.math : CUDNN_DEFAULT_MATH,
                       .reserved = {}};
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t take(cudnnHandle_t handle, const void* alpha, const void* beta, const CudnnCall& call) {
  if (const cudnnStatus_t status = check(call.x, call.filter, call.convolution, call.y); status != CUDNN_STATUS_SUCCESS)
    return status;
  const auto scale = [&](const void* p) {
    return call.x.type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(p) : *static_cast<const float*>(p);
  };
  if (scale(alpha) != 1 || scale(beta) != 0) return CUDNN_STATUS_NOT_SUPPORTED;
  const auto is_right = [](const void* data, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && is_device_memory(data, std::size_t(bytes));
  };
  if (!is_right(call.x_data, call.x.bytes()) || !is_right(call.filter_data, call.filter.bytes()) ||
      !is_right(call.y_data, call.y.bytes())) {
    return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
  }
  if (call.bias != nullptr && !is_right(call.bias, call.y.bytes() / call.y.numel() * call.y.c))
    return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
  const std::int64_t needed = workspace_bytes(call.direction, call.algorithm, call.x, call.filter, call.convolution, call.y);
  if (call.workspace_bytes < needed) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
  if (needed > 0 &&
      (reinterpret_cast<std::uintptr_t>(call.workspace) % 256 != 0 || !is_right(call.workspace, call.workspace_bytes))) {
    return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
  }
  CudnnRecord& record = cudnn_record();
  record = {.num_choices = record.num_choices,
            .num_runs = record.num_runs + 1,
            .algorithm = call.algorithm,
            .math = int(call.convolution.math),
            .workspace_bytes = std::size_t(call.workspace_bytes),
            .has_bias = call.bias != nullptr,
            .stream = behind<Context>(handle).stream};
  submit(behind<Context>(handle).stream, [call] { run_cudnn_call(call); });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH:
      return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT:
      return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE:
      return "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED_PADDING:
      return "CUDNN_STATUS_NOT_SUPPORTED_PADDING";
    default:
      return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                                         : "CUDNN_STATUS_BAD_PARAM";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return create<Context>(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  behind<Context>(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) { return create<CudnnTensor>(made); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy<CudnnTensor>(tensor); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                         int c, int h, int w) {
  if (format != CUDNN_TENSOR_NCHW || n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  behind<CudnnTensor>(tensor) = {type, n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) { return create<CudnnTensor>(made); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return destroy<CudnnTensor>(filter); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k,
                                         int c, int h, int w) {
  if (format != CUDNN_TENSOR_NCHW || k < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  behind<CudnnTensor>(filter) = {type, k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* made) { return create<cudnnActivationMode_t>(made); }
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
  return destroy<cudnnActivationMode_t>(activation);
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t, double) {
  behind<cudnnActivationMode_t>(activation) = mode;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) { return create<CudnnConvolution>(made); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy<CudnnConvolution>(convolution);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (pad_h != pad_w || pad_h < 0 || stride_h != stride_w || stride_h < 1 || dilation_h != 1 || dilation_w != 1)
    return CUDNN_STATUS_BAD_PARAM;
  if (mode != CUDNN_CROSS_CORRELATION || (compute != CUDNN_DATA_FLOAT && compute != CUDNN_DATA_DOUBLE))
    return CUDNN_STATUS_BAD_PARAM;
  behind<CudnnConvolution>(convolution) = {.padding = pad_h, .stride = stride_h, .compute = compute};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  behind<CudnnConvolution>(convolution).math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t filter,
                                                     cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y, int wanted,
                                                     int* num, cudnnConvolutionFwdAlgoPerf_t* found) {
  return find(CudnnDirection::forward, behind<CudnnTensor>(x), behind<CudnnTensor>(filter), behind<CudnnConvolution>(c),
              behind<CudnnTensor>(y),
              {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM},
              wanted, num, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t filter,
                                                          cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t c,
                                                          cudnnTensorDescriptor_t x, int wanted, int* num,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return find(CudnnDirection::backward_data, behind<CudnnTensor>(x), behind<CudnnTensor>(filter), behind<CudnnConvolution>(c),
              behind<CudnnTensor>(y),
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1},
              wanted, num, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
                                                            cudnnConvolutionDescriptor_t c, cudnnFilterDescriptor_t filter,
                                                            int wanted, int* num, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return find(CudnnDirection::backward_filter, behind<CudnnTensor>(x), behind<CudnnTensor>(filter), behind<CudnnConvolution>(c),
              behind<CudnnTensor>(y),
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1},
              wanted, num, found);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t filter,
                                                      cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  *bytes = std::size_t(workspace_bytes(CudnnDirection::forward, algorithm, behind<CudnnTensor>(x), behind<CudnnTensor>(filter),
                                       behind<CudnnConvolution>(c), behind<CudnnTensor>(y)));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t filter,
                                                           cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t c,
                                                           cudnnTensorDescriptor_t x, cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           size_t* bytes) {
  *bytes = std::size_t(workspace_bytes(CudnnDirection::backward_data, algorithm, behind<CudnnTensor>(x),
                                       behind<CudnnTensor>(filter), behind<CudnnConvolution>(c), behind<CudnnTensor>(y)));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
                                                             cudnnConvolutionDescriptor_t c, cudnnFilterDescriptor_t filter,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  *bytes = std::size_t(workspace_bytes(CudnnDirection::backward_filter, algorithm, behind<CudnnTensor>(x),
                                       behind<CudnnTensor>(filter), behind<CudnnConvolution>(c), behind<CudnnTensor>(y)));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x, const void* x_data,
                                      cudnnFilterDescriptor_t filter, const void* filter_data, cudnnConvolutionDescriptor_t c,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
                                      cudnnTensorDescriptor_t y, void* y_data) {
  return take(handle, alpha, beta,
              {.direction = CudnnDirection::forward,
               .x = behind<CudnnTensor>(x),
               .filter = behind<CudnnTensor>(filter),
               .y = behind<CudnnTensor>(y),
               .convolution = behind<CudnnConvolution>(c),
               .algorithm = int(algorithm),
               .x_data = x_data,
               .filter_data = filter_data,
               .y_data = y_data,
               .out = y_data,
               .workspace = workspace,
               .workspace_bytes = std::int64_t(bytes)});
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x,
                                                    const void* x_data, cudnnFilterDescriptor_t filter, const void* filter_data,
                                                    cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algorithm,
                                                    void* workspace, size_t bytes, const void* alpha2, cudnnTensorDescriptor_t,
                                                    const void*, cudnnTensorDescriptor_t bias, const void* bias_data,
                                                    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y,
                                                    void* y_data) {
  const CudnnTensor &b = behind<CudnnTensor>(bias), &out = behind<CudnnTensor>(y);
  if (b.type != out.type || b.n != 1 || b.c != out.c || b.h != 1 || b.w != 1) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  if (behind<cudnnActivationMode_t>(activation) != CUDNN_ACTIVATION_IDENTITY ||
      algorithm != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  // Stands for what is refused only when it is to be run.
  if (out.type == CUDNN_DATA_DOUBLE) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
  return take(handle, alpha, alpha2,
              {.direction = CudnnDirection::forward,
               .x = behind<CudnnTensor>(x),
               .filter = behind<CudnnTensor>(filter),
               .y = out,
               .convolution = behind<CudnnConvolution>(c),
               .algorithm = int(algorithm),
               .x_data = x_data,
               .filter_data = filter_data,
               .y_data = y_data,
               .out = y_data,
               .bias = bias_data,
               .workspace = workspace,
               .workspace_bytes = std::int64_t(bytes)});
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t filter,
                                           const void* filter_data, cudnnTensorDescriptor_t y, const void* y_data,
                                           cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t x,
                                           void* x_data) {
  return take(handle, alpha, beta,
              {.direction = CudnnDirection::backward_data,
               .x = behind<CudnnTensor>(x),
               .filter = behind<CudnnTensor>(filter),
               .y = behind<CudnnTensor>(y),
               .convolution = behind<CudnnConvolution>(c),
               .algorithm = int(algorithm),
               .x_data = x_data,
               .filter_data = filter_data,
               .y_data = y_data,
               .out = x_data,
               .workspace = workspace,
               .workspace_bytes = std::int64_t(bytes)});
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x,
                                             const void* x_data, cudnnTensorDescriptor_t y, const void* y_data,
                                             cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void* workspace, size_t bytes, const void* beta, cudnnFilterDescriptor_t filter,
                                             void* filter_data) {
  return take(handle, alpha, beta,
              {.direction = CudnnDirection::backward_filter,
               .x = behind<CudnnTensor>(x),
               .filter = behind<CudnnTensor>(filter),
               .y = behind<CudnnTensor>(y),
               .convolution = behind<CudnnConvolution>(c),
               .algorithm = int(algorithm),
               .x_data = x_data,
               .filter_data = filter_data,
               .y_data = y_data,
               .out = filter_data,
               .workspace = workspace,
               .workspace_bytes = std::int64_t(bytes)});
}

}  // extern "C"

const refrain::emulator::Fake& refrain::emulator::cudnn_fake() {
#define REFRAIN_FUNCTION(name) \
  { #name, address_of(::name) }
  static const Fake fake = {.file = "libcudnn.so." + std::to_string(CUDNN_MAJOR),
                            .functions = {REFRAIN_FUNCTION(cudnnConvolutionBackwardData),
                                          REFRAIN_FUNCTION(cudnnConvolutionBackwardFilter),
                                          REFRAIN_FUNCTION(cudnnConvolutionBiasActivationForward),
                                          REFRAIN_FUNCTION(cudnnConvolutionForward),
                                          REFRAIN_FUNCTION(cudnnCreate),
                                          REFRAIN_FUNCTION(cudnnCreateActivationDescriptor),
                                          REFRAIN_FUNCTION(cudnnCreateConvolutionDescriptor),
                                          REFRAIN_FUNCTION(cudnnCreateFilterDescriptor),
                                          REFRAIN_FUNCTION(cudnnCreateTensorDescriptor),
                                          REFRAIN_FUNCTION(cudnnDestroyActivationDescriptor),
                                          REFRAIN_FUNCTION(cudnnDestroyConvolutionDescriptor),
                                          REFRAIN_FUNCTION(cudnnDestroyFilterDescriptor),
                                          REFRAIN_FUNCTION(cudnnDestroyTensorDescriptor),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionBackwardDataAlgorithm_v7),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionBackwardDataWorkspaceSize),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionBackwardFilterAlgorithm_v7),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionBackwardFilterWorkspaceSize),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionForwardAlgorithm_v7),
                                          REFRAIN_FUNCTION(cudnnGetConvolutionForwardWorkspaceSize),
                                          REFRAIN_FUNCTION(cudnnGetErrorString),
                                          REFRAIN_FUNCTION(cudnnSetActivationDescriptor),
                                          REFRAIN_FUNCTION(cudnnSetConvolution2dDescriptor),
                                          REFRAIN_FUNCTION(cudnnSetConvolutionMathType),
                                          REFRAIN_FUNCTION(cudnnSetFilter4dDescriptor),
                                          REFRAIN_FUNCTION(cudnnSetStream),
                                          REFRAIN_FUNCTION(cudnnSetTensor4dDescriptor)}};
#undef REFRAIN_FUNCTION
  return fake;
}
