#include <refrain/core/cuda/cuda_range.cuh>
#include <refrain/core/cuda/graph.cuh>

#include <algorithm>
#include <exception>

namespace refrain {

namespace cuda {

namespace {

// A recorded graph; it is of no more use once it has been made executable.
struct Recorded {
  cudaGraph_t graph = nullptr;
  ~Recorded() {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  }
};

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  return std::int64_t(free);
}

}  // namespace

GraphSections::~GraphSections() {
  for (const Executable& each : executables_) static_cast<void>(cudaGraphExecDestroy(each.exec));
}

bool GraphSections::begin_step() {
  const std::lock_guard lock(mutex_);
  if (is_in_step_) return false;
  is_in_step_ = true;
  is_on_ = is_warm_;
  is_warm_ = true;
  return true;
}

void GraphSections::end_step() {
  struct Off {
    GraphSections& sections;
    ~Off() {
      const std::lock_guard lock(sections.mutex_);
      sections.is_on_ = sections.is_in_step_ = false;
    }
  } off{*this};
  close();
}

void GraphSections::open() {
  const std::lock_guard lock(mutex_);
  if (!is_on_ || is_open_) return;
  // Relaxed: the arena may take memory meanwhile, and the loader's thread may wait for its copies.
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "beginning a CUDA graph");
  is_open_ = true;
}

void GraphSections::close() {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  is_open_ = false;
  Recorded recorded;
  check_cuda(cudaStreamEndCapture(stream_, &recorded.graph), "ending a CUDA graph");
  std::size_t num_nodes = 0;
  check_cuda(cudaGraphGetNodes(recorded.graph, nullptr, &num_nodes), "counting a CUDA graph's nodes");
  if (num_nodes == 0) return;
  check_cuda(cudaGraphLaunch(executable(recorded.graph, num_nodes), stream_), "launching a CUDA graph");
  ++counts_.launches;
  counts_.nodes += std::int64_t(num_nodes);
}

cudaGraphExec_t GraphSections::executable(cudaGraph_t graph, std::size_t num_nodes) {
  int tries = 0;
  for (std::size_t i = executables_.size(); i-- > 0 && tries < kMostTries;) {
    if (executables_[i].num_nodes != num_nodes) continue;
    ++tries;
    cudaGraphExecUpdateResultInfo result{};
    const cudaError_t error = cudaGraphExecUpdate(executables_[i].exec, graph, &result);
    if (error == cudaSuccess) {
      std::rotate(executables_.begin() + std::ptrdiff_t(i), executables_.begin() + std::ptrdiff_t(i) + 1, executables_.end());
      return executables_.back().exec;
    }
    if (error != cudaErrorGraphExecUpdateFailure) check_cuda(error, "updating a CUDA graph");
    static_cast<void>(cudaGetLastError());  // it is answered here, and is nobody else's
  }
  if (executables_.size() == kMostExecutables) {
    static_cast<void>(cudaGraphExecDestroy(executables_.front().exec));
    executables_.erase(executables_.begin());
  }
  executables_.push_back({num_nodes, instantiate(graph)});
  return executables_.back().exec;
}

cudaGraphExec_t GraphSections::instantiate(cudaGraph_t graph) {
  const std::int64_t free_before = free_device_bytes();
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "making a CUDA graph executable");
  const cudaError_t uploaded = cudaGraphUpload(exec, stream_);
  if (uploaded != cudaSuccess) {
    static_cast<void>(cudaGraphExecDestroy(exec));
    check_cuda(uploaded, "uploading a CUDA graph");
  }
  ++counts_.instantiations;
  counts_.bytes += std::max<std::int64_t>(0, free_before - free_device_bytes());
  return exec;
}

CudaGraphCounts GraphSections::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace cuda

namespace {

const cuda::CudaRange& range_of(const Device& device) { return static_cast<const cuda::CudaRange&>(*device.state().range); }

}  // namespace

CudaGraphScope::CudaGraphScope(const Device& device) : device_(device) {
  is_on_ = device.kind() == DeviceKind::cuda && range_of(device).graphs().begin_step();
}

void CudaGraphScope::finish() {
  if (!is_on_) return;
  is_on_ = false;
  cuda::make_current(device_.index());
  range_of(device_).graphs().end_step();
}

CudaGraphScope::~CudaGraphScope() {
  // An exception is on its way, of which an error here would be a consequence. What was captured before it is launched still,
  // as it would have been without graphs.
  try {
    finish();
  } catch (const std::exception&) {
  }
}

CudaGraphCounts cuda_graph_counts(const Device& device) {
  return device.kind() == DeviceKind::cuda ? range_of(device).graphs().counts() : CudaGraphCounts{};
}

}  // namespace refrain
