// What is given to a stream, gathered into CUDA graphs. The program runs as always, call by call, on a stream that captures; the
// graph so recorded brings an executable one of its topology up to date and is launched once. Arguments are therefore those of
// this very call, whatever was launched before: nothing of a graph is ever launched a second time.
//
// A section ends with whatever cannot be captured: a wait, a copy to or from the host, an event of another stream. What was
// captured is launched then, before it, and the next kernel opens a new section. So any program stays right.
#pragma once

#include <refrain/core/cuda/backend.h>
#include <refrain/core/cuda/handles.cuh>

#include <cstddef>
#include <mutex>
#include <vector>

namespace refrain::cuda {

class GraphSections {
 public:
  explicit GraphSections(cudaStream_t stream) : stream_(stream) {}
  ~GraphSections();
  GraphSections(const GraphSections&) = delete;
  GraphSections& operator=(const GraphSections&) = delete;

  // From now on work is captured. Not in the first step of a device: what is made once (modules, handles, buffers) is made there.
  // False inside another step.
  bool begin_step();
  void end_step();
  // Work comes now: opens a section.
  void open();
  // Something comes that cannot be captured: launches what was.
  void close();
  CudaGraphCounts counts() const;

 private:
  struct Executable {
    std::size_t num_nodes;
    cudaGraphExec_t exec;
  };
  // An executable graph that does what `graph` does, the latest used first in its list.
  cudaGraphExec_t executable(cudaGraph_t graph, std::size_t num_nodes);
  cudaGraphExec_t instantiate(cudaGraph_t graph);

  // Sections of a step differ (first and last micro-batch, forward and backward), and some differ between steps.
  static constexpr std::size_t kMostExecutables = 64;
  static constexpr int kMostTries = 4;

  cudaStream_t stream_;
  mutable std::mutex mutex_;
  bool is_in_step_ = false, is_on_ = false, is_open_ = false, is_warm_ = false;
  std::vector<Executable> executables_;  // the latest used last
  CudaGraphCounts counts_;
};

}  // namespace refrain::cuda
