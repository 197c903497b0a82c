// The fake runtime's stream capture and graphs: what is captured does not run, what a graph knows is what it was last told, and
// what CUDA refuses is refused.
#include <refrain/tests/support/catch.h>

#include <cuda_runtime_api.h>

#include <cstring>

namespace {

struct Fixture {
  Fixture() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaHostAlloc(&host, 64, 0) == cudaSuccess);
    REQUIRE(cudaMalloc(&device, 64) == cudaSuccess);
    fill(0);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  ~Fixture() {
    cudaStreamDestroy(stream);
    cudaFree(device);
    cudaFreeHost(host);
  }
  cudaError_t fill(int value) { return cudaMemsetAsync(device, value, 64, stream); }
  int value() {
    REQUIRE(cudaMemcpyAsync(host, device, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return static_cast<unsigned char*>(host)[63];
  }
  void begin() { REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess); }
  cudaGraph_t captured(std::initializer_list<int> fills) {
    begin();
    for (const int each : fills) CHECK(fill(each) == cudaSuccess);
    cudaGraph_t graph;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    return graph;
  }
  cudaStream_t stream;
  void *host, *device;
};

}  // namespace

TEST_CASE("emulator graphs: captured work runs when its graph is launched, with the arguments of the last update") {
  Fixture f;
  const cudaGraph_t first = f.captured({3}), second = f.captured({7}), longer = f.captured({1, 2});
  CHECK(f.value() == 0);
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, first, 0) == cudaSuccess);
  cudaGraphExecUpdateResultInfo info;
  CHECK(cudaGraphLaunch(exec, f.stream) == cudaSuccess);
  CHECK(cudaGraphExecUpdate(exec, second, &info) == cudaSuccess);  // for launches from now on
  CHECK(f.value() == 3);
  CHECK(cudaGraphLaunch(exec, f.stream) == cudaSuccess);
  CHECK(f.value() == 7);
  CHECK(cudaGraphExecUpdate(exec, longer, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  std::size_t count = 0;
  CHECK(cudaGraphGetNodes(longer, nullptr, &count) == cudaSuccess);
  CHECK(count == 2);
  for (const cudaGraph_t graph : {first, second, longer}) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(first) == cudaErrorInvalidValue);
  CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
  CHECK(cudaGraphLaunch(exec, f.stream) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("emulator graphs: waits, events and pageable copies on a stream that captures are errors, and the capture is lost") {
  Fixture f;
  cudaEvent_t event;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  char pageable[64] = {};
  const auto check_spoils = [&](cudaError_t expected, auto&& call) {
    f.begin();
    CHECK(call() == expected);
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(f.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
  };
  check_spoils(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(f.stream); });
  check_spoils(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(f.stream); });
  check_spoils(cudaErrorStreamCaptureUnsupported, [&] { return cudaEventRecord(event, f.stream); });
  check_spoils(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(f.stream, event, 0); });
  check_spoils(cudaErrorStreamCaptureUnsupported,
               [&] { return cudaMemcpyAsync(f.device, pageable, 64, cudaMemcpyHostToDevice, f.stream); });
  f.begin();
  CHECK(cudaStreamBeginCapture(f.stream, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
  CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph;
  CHECK(cudaStreamEndCapture(f.stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaStreamEndCapture(f.stream, &graph) == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
  CHECK(f.value() == 0);
  cudaEventDestroy(event);
  cudaGetLastError();
}
