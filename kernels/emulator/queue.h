// Streams and events. In immediate mode work runs when it is given; in deferred mode when something waits for it, as late as is
// allowed, and across streams only in the order that events force.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace refrain::emulator {

// Gives a stream its next work. The null stream waits for all others and runs at once. `what` is the kernel, or null: what a
// captured graph's node is known by.
void submit(cudaStream_t stream, std::function<void()> work, const void* what = nullptr);
// The same for work that waits for what is not of this program's streams: `work` says whether it is done, and is asked again
// where it is not; the stream stands still meanwhile. It must not wait itself.
void submit_waiting(cudaStream_t stream, std::function<bool()> work);
// Runs all that was given to the stream, and what that waits for. Throws Error for what went wrong, and where a stream has stood
// still for as long as a launch may take.
void drain(cudaStream_t stream);
void drain_all();  // of the current device; others are run as far as they go
// Runs one piece of work; whether nothing is left.
bool poll(cudaStream_t stream);

cudaStream_t create_stream();
bool destroy_stream(cudaStream_t stream);
bool is_stream(cudaStream_t stream);

cudaEvent_t create_event();
bool destroy_event(cudaEvent_t event);
bool is_event(cudaEvent_t event);
// Work given to a stream while it captures is recorded and not run (runtime_graph.cpp).
struct GraphNode {
  std::function<void()> run;
  const void* what;
};
bool begin_capture(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);  // the null stream: any
// What was asked of the stream cannot be captured: the capture is lost.
void spoil_capture(cudaStream_t stream);
enum class Captured { good, spoiled, none };
Captured end_capture(cudaStream_t stream, std::vector<GraphNode>& nodes);

// The event is where the stream's work ends now.
void record_event(cudaEvent_t event, cudaStream_t stream);
// What is given to the stream from now on runs after the event as it is recorded now.
void wait_event(cudaStream_t stream, cudaEvent_t event);
void drain_to(cudaEvent_t event);
bool poll(cudaEvent_t event);
double milliseconds_between(cudaEvent_t first, cudaEvent_t second);

}  // namespace refrain::emulator
