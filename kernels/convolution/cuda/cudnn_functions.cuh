// cuDNN's functions as they are found at run time, and owners of its descriptors. For host code with cuDNN's headers.
#pragma once

#include <refrain/core/check.h>
#include <refrain/kernels/common/cuda/library.h>

#include <cudnn.h>

#include <memory>
#include <string_view>
#include <type_traits>

namespace refrain::cuda {

namespace cudnn_functions {

// The functions that are used, by their own names.
struct Functions {
#define REFRAIN_FUNCTION(name) decltype(&::name) name = cudnn_library().find<decltype(&::name)>(#name)
  REFRAIN_FUNCTION(cudnnConvolutionBackwardData);
  REFRAIN_FUNCTION(cudnnConvolutionBackwardFilter);
  REFRAIN_FUNCTION(cudnnConvolutionBiasActivationForward);
  REFRAIN_FUNCTION(cudnnConvolutionForward);
  REFRAIN_FUNCTION(cudnnCreate);
  REFRAIN_FUNCTION(cudnnCreateActivationDescriptor);
  REFRAIN_FUNCTION(cudnnCreateConvolutionDescriptor);
  REFRAIN_FUNCTION(cudnnCreateFilterDescriptor);
  REFRAIN_FUNCTION(cudnnCreateTensorDescriptor);
  REFRAIN_FUNCTION(cudnnDestroyActivationDescriptor);
  REFRAIN_FUNCTION(cudnnDestroyConvolutionDescriptor);
  REFRAIN_FUNCTION(cudnnDestroyFilterDescriptor);
  REFRAIN_FUNCTION(cudnnDestroyTensorDescriptor);
  REFRAIN_FUNCTION(cudnnGetConvolutionBackwardDataAlgorithm_v7);
  REFRAIN_FUNCTION(cudnnGetConvolutionBackwardDataWorkspaceSize);
  REFRAIN_FUNCTION(cudnnGetConvolutionBackwardFilterAlgorithm_v7);
  REFRAIN_FUNCTION(cudnnGetConvolutionBackwardFilterWorkspaceSize);
  REFRAIN_FUNCTION(cudnnGetConvolutionForwardAlgorithm_v7);
  REFRAIN_FUNCTION(cudnnGetConvolutionForwardWorkspaceSize);
  REFRAIN_FUNCTION(cudnnGetErrorString);
  REFRAIN_FUNCTION(cudnnSetActivationDescriptor);
  REFRAIN_FUNCTION(cudnnSetConvolution2dDescriptor);
  REFRAIN_FUNCTION(cudnnSetConvolutionMathType);
  REFRAIN_FUNCTION(cudnnSetFilter4dDescriptor);
  REFRAIN_FUNCTION(cudnnSetStream);
  REFRAIN_FUNCTION(cudnnSetTensor4dDescriptor);
#undef REFRAIN_FUNCTION
};
inline const Functions& dnn() {
  static const Functions functions;
  return functions;
}

inline bool is_refusal(cudnnStatus_t status) { return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED; }

inline void check_status(cudnnStatus_t status, std::string_view name, std::string_view call) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]] fail<CudaError>(name, ": ", call, ": ", dnn().cudnnGetErrorString(status));
}

template <class Handle, auto destroy>  // destroy: a member of Functions
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { static_cast<void>((dnn().*destroy)(handle)); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
using TensorLayout = Owned<cudnnTensorDescriptor_t, &Functions::cudnnDestroyTensorDescriptor>;
using FilterLayout = Owned<cudnnFilterDescriptor_t, &Functions::cudnnDestroyFilterDescriptor>;
using Operation = Owned<cudnnConvolutionDescriptor_t, &Functions::cudnnDestroyConvolutionDescriptor>;
using ActivationWord = Owned<cudnnActivationDescriptor_t, &Functions::cudnnDestroyActivationDescriptor>;

template <class Result, class Handle>
Result created(cudnnStatus_t (*create)(Handle*), std::string_view name) {
  Handle handle = nullptr;
  check_status(create(&handle), name, "creating a descriptor");
  return Result(handle);
}

}  // namespace cudnn_functions

}  // namespace refrain::cuda
