// The fake CUDA runtime: stream capture and graphs of one stream's work, a chain. An executable graph keeps the arguments it was
// made or last updated with, and runs with those. Updates are refused where the chain's kernels, copies and fills differ: a
// driver may be more lenient, and is then asked for fewer new graphs.
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/runtime.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <set>

using namespace refrain::emulator;

namespace {

using Chain = std::vector<GraphNode>;

// The living graphs, executable or not: a handle is checked before it is followed.
struct Graphs {
  std::mutex mutex;
  std::set<Chain*> graphs, executables;
};
Graphs& all() {
  static Graphs* graphs = new Graphs;
  return *graphs;
}

Chain* of(cudaGraph_t graph) { return reinterpret_cast<Chain*>(graph); }
Chain* of(cudaGraphExec_t exec) { return reinterpret_cast<Chain*>(exec); }

bool has(const std::set<Chain*>& living, Chain* chain) { return living.count(chain) > 0; }

cudaError_t destroy(std::set<Chain*>& living, Chain* chain) {
  const std::lock_guard lock(all().mutex);
  if (living.erase(chain) == 0) return note_error(cudaErrorInvalidValue);
  delete chain;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  if (stream == nullptr) return note_error(cudaErrorStreamCaptureUnsupported);
  return note_error(begin_capture(stream) ? cudaSuccess : cudaErrorIllegalState);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  Chain nodes;
  switch (end_capture(stream, nodes)) {
    case Captured::none: return note_error(cudaErrorIllegalState);
    case Captured::spoiled: return note_error(cudaErrorStreamCaptureInvalidated);
    case Captured::good: break;
  }
  auto* chain = new Chain(std::move(nodes));
  const std::lock_guard lock(all().mutex);
  all().graphs.insert(chain);
  *graph = reinterpret_cast<cudaGraph_t>(chain);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  *status = stream != nullptr && is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const std::lock_guard lock(all().mutex);
  if (nodes != nullptr || !has(all().graphs, of(graph))) return note_error(cudaErrorInvalidValue);  // nodes have no handles here
  *count = of(graph)->size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(all().mutex);
  if (!has(all().graphs, of(graph))) return note_error(cudaErrorInvalidValue);
  auto* chain = new Chain(*of(graph));
  all().executables.insert(chain);
  *exec = reinterpret_cast<cudaGraphExec_t>(chain);
  return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  const std::lock_guard lock(all().mutex);
  if (!has(all().graphs, of(graph)) || !has(all().executables, of(exec))) return note_error(cudaErrorInvalidValue);
  const bool is_alike = std::equal(of(exec)->begin(), of(exec)->end(), of(graph)->begin(), of(graph)->end(),
                                   [](const GraphNode& a, const GraphNode& b) { return a.what == b.what; });
  *info = {};
  info->result = is_alike ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  if (!is_alike) return note_error(cudaErrorGraphExecUpdateFailure);
  *of(exec) = *of(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::lock_guard lock(all().mutex);
  return note_error(has(all().executables, of(exec)) && is_stream(stream) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  Chain nodes;  // later updates are for later launches
  {
    const std::lock_guard lock(all().mutex);
    if (!has(all().executables, of(exec))) return note_error(cudaErrorInvalidValue);
    nodes = *of(exec);
  }
  return guarded([&] {
    for (GraphNode& node : nodes) submit(stream, std::move(node.run), node.what);
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(all().graphs, of(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return destroy(all().executables, of(exec)); }

}
