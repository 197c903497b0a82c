#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/thread.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

namespace refrain::emulator {

namespace {

using Clock = std::chrono::steady_clock;

using Work = std::function<bool()>;  // whether it is done

int current_device() {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  return device;
}

struct Stream {
  int device = current_device();
  std::deque<Work> work;
  std::uint64_t num_given = 0, num_done = 0;
  std::unique_ptr<std::vector<GraphNode>> capture;
  bool is_spoiled = false;
};

// A point in a stream's work.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t position = 0;
  std::shared_ptr<Clock::time_point> time;
};

struct Queues {
  std::recursive_mutex mutex;
  std::set<std::shared_ptr<Stream>*> streams;
  std::set<Point*> events;
};

Queues& queues() {
  static Queues* all = new Queues;  // never destroyed: devices may outlive any order of destruction
  return *all;
}

std::shared_ptr<Stream>& handle(cudaStream_t stream) { return *reinterpret_cast<std::shared_ptr<Stream>*>(stream); }
Point& point(cudaEvent_t event) { return *reinterpret_cast<Point*>(event); }

// Whether it could be run.
bool run_next(Stream& stream) {
  Work work = std::move(stream.work.front());
  stream.work.pop_front();
  ++stream.num_done;
  if (work()) return true;
  --stream.num_done;
  stream.work.push_front(std::move(work));
  return false;
}

// Whether it got there.
bool run_to(Stream& stream, std::uint64_t position) {
  if (stream.num_done >= position) return true;
  const AccessScope access;
  while (stream.num_done < position)
    if (!run_next(stream)) return false;
  return true;
}

// Tries until it is so, and lets other threads at the queues between tries.
void wait_until(const std::function<bool()>& is_so) {
  for (const Clock::time_point start = Clock::now();;) {
    {
      const std::lock_guard lock(queues().mutex);
      if (is_so()) return;
    }
    if (options().timeout_seconds > 0 && Clock::now() - start > std::chrono::seconds(options().timeout_seconds))
      throw Error("a stream stands still: what it waits for does not come");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool run_all(Stream& stream) { return run_to(stream, stream.num_given); }

// Whether those of the current device are done: others may stand still for what this thread has yet to do.
bool run_all_streams() {
  const int device = current_device();
  bool are_done = true;
  for (auto* stream : queues().streams) are_done = (run_all(**stream) || (*stream)->device != device) && are_done;
  return are_done;
}

void give(Stream& stream, Work work) {
  stream.work.push_back(std::move(work));
  ++stream.num_given;
  if (!options().is_deferred) run_all(stream);
}

}  // namespace

void submit(cudaStream_t stream, std::function<void()> work, const void* what) {
  if (stream == nullptr) {
    wait_until(run_all_streams);
    const std::lock_guard lock(queues().mutex);
    const AccessScope access;
    work();
    return;
  }
  const std::lock_guard lock(queues().mutex);
  Stream& queue = *handle(stream);
  if (queue.capture != nullptr) {
    queue.capture->push_back({std::move(work), what});
    return;
  }
  give(queue, [work = std::move(work)] {
    work();
    return true;
  });
}

void submit_waiting(cudaStream_t stream, std::function<bool()> work) {
  const std::lock_guard lock(queues().mutex);
  give(*handle(stream), std::move(work));
}

void drain(cudaStream_t stream) {
  if (stream == nullptr) return drain_all();
  wait_until([stream] { return run_all(*handle(stream)); });
}

void drain_all() { wait_until(run_all_streams); }

bool poll(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  if (stream == nullptr) return true;
  Stream& queue = *handle(stream);
  if (!queue.work.empty()) run_to(queue, queue.num_done + 1);
  return queue.work.empty();
}

bool begin_capture(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  if (stream == nullptr || handle(stream)->capture != nullptr) return false;
  handle(stream)->capture = std::make_unique<std::vector<GraphNode>>();
  handle(stream)->is_spoiled = false;
  return true;
}

bool is_capturing(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  if (stream != nullptr) return handle(stream)->capture != nullptr;
  return std::any_of(queues().streams.begin(), queues().streams.end(), [](const auto* each) { return (*each)->capture != nullptr; });
}

void spoil_capture(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  handle(stream)->is_spoiled = true;
}

Captured end_capture(cudaStream_t stream, std::vector<GraphNode>& nodes) {
  const std::lock_guard lock(queues().mutex);
  if (stream == nullptr || handle(stream)->capture == nullptr) return Captured::none;
  nodes = std::move(*handle(stream)->capture);
  handle(stream)->capture.reset();
  return handle(stream)->is_spoiled ? Captured::spoiled : Captured::good;
}

cudaStream_t create_stream() {
  const std::lock_guard lock(queues().mutex);
  auto* stream = new std::shared_ptr<Stream>(std::make_shared<Stream>());
  queues().streams.insert(stream);
  return reinterpret_cast<cudaStream_t>(stream);
}

bool is_stream(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  return stream == nullptr || queues().streams.count(reinterpret_cast<std::shared_ptr<Stream>*>(stream)) > 0;
}

bool destroy_stream(cudaStream_t stream) {
  if (!is_stream(stream)) return false;
  drain(stream);
  const std::lock_guard lock(queues().mutex);
  auto* known = reinterpret_cast<std::shared_ptr<Stream>*>(stream);
  queues().streams.erase(known);
  delete known;
  return true;
}

cudaEvent_t create_event() {
  const std::lock_guard lock(queues().mutex);
  auto* event = new Point;
  queues().events.insert(event);
  return reinterpret_cast<cudaEvent_t>(event);
}

bool is_event(cudaEvent_t event) {
  const std::lock_guard lock(queues().mutex);
  return queues().events.count(reinterpret_cast<Point*>(event)) > 0;
}

bool destroy_event(cudaEvent_t event) {
  const std::lock_guard lock(queues().mutex);
  if (queues().events.erase(reinterpret_cast<Point*>(event)) == 0) return false;
  delete &point(event);
  return true;
}

void record_event(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  Point& recorded = point(event);
  recorded.time = std::make_shared<Clock::time_point>();
  const auto take_time = [time = recorded.time] { *time = Clock::now(); };
  submit(stream, take_time);
  recorded.stream = stream != nullptr ? handle(stream) : nullptr;
  recorded.position = stream != nullptr ? handle(stream)->num_given : 0;
}

void wait_event(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard lock(queues().mutex);
  const Point now = point(event);
  if (now.stream == nullptr || now.stream->num_done >= now.position) return;
  give(*handle(stream), [now] { return run_to(*now.stream, now.position); });
}

void drain_to(cudaEvent_t event) {
  const Point now = [event] {
    const std::lock_guard lock(queues().mutex);
    return point(event);
  }();
  if (now.stream != nullptr) wait_until([&now] { return run_to(*now.stream, now.position); });
}

bool poll(cudaEvent_t event) {
  const std::lock_guard lock(queues().mutex);
  const Point now = point(event);
  if (now.stream == nullptr || now.stream->num_done >= now.position) return true;
  run_to(*now.stream, now.stream->num_done + 1);
  return now.stream->num_done >= now.position;
}

double milliseconds_between(cudaEvent_t first, cudaEvent_t second) {
  const std::lock_guard lock(queues().mutex);
  return std::chrono::duration<double, std::milli>(*point(second).time - *point(first).time).count();
}

}  // namespace refrain::emulator
