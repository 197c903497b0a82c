#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/race.h>

#include <algorithm>
#include <cstring>

namespace refrain::emulator {

thread_local Thread* current_thread = nullptr;
thread_local Block* Block::current_ = nullptr;

namespace {

std::string text(const uint3& v) { return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")"; }
std::string text(const Site& site) {
  const char* name = std::strrchr(site.file, '/');
  return std::string(name != nullptr ? name + 1 : site.file) + ":" + std::to_string(site.line);
}
bool same(const Site& a, const Site& b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

}  // namespace

Block::Block() = default;
Block::~Block() = default;

std::string Block::run(const Place& place, std::size_t dynamic_shared_bytes, const std::function<void()>& body) {
  body_ = &body;
  set_up(place, dynamic_shared_bytes);
  current_ = this;
  now_ = &host_;
  next();
  current_ = nullptr;
  current_thread = nullptr;
  return failure_;
}

void Block::set_up(const Place& place, std::size_t dynamic_shared_bytes) {
  place_ = place;
  num_threads_ = place.extent.x * place.extent.y * place.extent.z;
  num_live_ = num_threads_;
  num_at_barrier_ = 0;
  num_barriers_ = 1;
  num_switches_ = 0;
  ++interval_;
  random_ = options().seed * 0x9E3779B97F4A7C15ull + place.linear + 1;
  has_failed_ = false;
  failure_.clear();
  host_.state = DeviceThread::State::ready;
  if (threads_.size() < num_threads_) threads_.resize(num_threads_);
  pending_.resize((num_threads_ + 31) / 32);
  for (auto& each : pending_) each.clear();
  std::fill(std::begin(warp_stamps_), std::end(warp_stamps_), std::uint16_t(1));
  shared_.start(dynamic_shared_bytes);
  ready_.clear();
  next_ = 0;
  woken_.clear();
  for (unsigned i = 0; i < num_threads_; ++i) {
    DeviceThread& thread = threads_[i];
    const dim3& extent = place.extent;
    thread.seen.index = uint3{i % extent.x, i / extent.x % extent.y, i / (extent.x * extent.y)};
    thread.seen.block = place.index;
    thread.seen.block_extent = extent;
    thread.seen.grid_extent = place.grid_extent;
    thread.seen.linear = i;
    thread.seen.warp = i / 32;
    thread.seen.lane = i % 32;
    thread.state = DeviceThread::State::ready;
    thread.copies.clear();
    thread.copy_group = 0;
    thread.stamp = 1;
    std::fill(std::begin(thread.known), std::end(thread.known), std::uint16_t(0));
    thread.fiber.prepare(&Block::entry);
    woken_.push_back(i);
  }
  make_ready(woken_);
}

void Block::entry() {
  Block* block = current_;
  Fiber::landed(block->now_->fiber, block->before_->fiber);
  block->run_body();
  block->finish();
  __builtin_trap();
}

void Block::run_body() {
  try {
    (*body_)();
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

void Block::finish() {
  if (!has_failed_ && !now_->copies.empty()) note_failure("cp.async is still under way when its thread ends");
  now_->state = DeviceThread::State::done;
  --num_live_;
  // Threads that have ended count as arrived, as on a GPU.
  if (!has_failed_ && num_live_ > 0 && num_at_barrier_ == num_live_) release_barrier();
  next();
}

void Block::change_to(DeviceThread& to) {
  if (&to == now_) return;
  DeviceThread& from = *now_;
  ++num_switches_;
  before_ = &from;
  now_ = &to;
  current_thread = &to == &host_ ? nullptr : &to.seen;
  Fiber::change(from.fiber, to.fiber, from.state == DeviceThread::State::done);
  Fiber::landed(from.fiber, before_->fiber);
}

// Goes on with the next thread that can run; back to the host when all have ended.
void Block::next() {
  if (!has_failed_ && next_ == ready_.size() && num_live_ > 0) note_failure("the block hangs, and so would a GPU:" + where());
  if (has_failed_ || next_ == ready_.size()) return change_to(host_);
  const unsigned index = ready_[next_++];
  if (next_ > 4096 && next_ * 2 > ready_.size()) {
    ready_.erase(ready_.begin(), ready_.begin() + std::ptrdiff_t(next_));
    next_ = 0;
  }
  change_to(threads_[index]);
}

std::uint64_t Block::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

void Block::make_ready(std::vector<unsigned>& threads) {
  switch (options().order) {
    case Order::forward: break;
    case Order::reverse: std::reverse(threads.begin(), threads.end()); break;
    case Order::random:
      for (std::size_t i = threads.size(); i > 1; --i) std::swap(threads[i - 1], threads[random() % i]);
      break;
  }
  ready_.insert(ready_.end(), threads.begin(), threads.end());
  threads.clear();
}

std::string Block::where() const {
  std::string message;
  int num_shown = 0, num_more = 0;
  const DeviceThread* last = nullptr;
  for (unsigned i = 0; i < num_threads_; ++i) {
    const DeviceThread& thread = threads_[i];
    if (thread.state == DeviceThread::State::done) continue;
    const bool is_waiting = thread.state != DeviceThread::State::ready;
    if (last != nullptr && last->state == thread.state && (!is_waiting || same(last->site, thread.site))) continue;  // like the one before
    last = &thread;
    if (++num_shown > 6) { ++num_more; continue; }
    message += "\n  thread " + std::to_string(i) + (is_waiting ? std::string(" waits in ") + thread.what + " at " + text(thread.site) : " runs");
  }
  const unsigned num_done = num_threads_ - num_live_;
  if (num_more > 0) message += "\n  and others";
  if (num_done > 0) message += "\n  " + std::to_string(num_done) + " of " + std::to_string(num_threads_) + " threads have ended";
  return message;
}

void Block::note_failure(std::string message) {
  if (has_failed_) return;
  has_failed_ = true;
  failure_ = std::move(message) + " [block " + text(place_.index);
  if (current_thread != nullptr) failure_ += " thread " + text(current_thread->index);
  failure_ += "]";
}

void Block::barrier(Site site) {
  DeviceThread& me = *now_;
  if (num_at_barrier_ > 0 && !same(barrier_site_, site))
    throw Error("threads of one block wait in different __syncthreads: " + text(barrier_site_) + " and " + text(site));
  barrier_site_ = me.site = site;
  me.what = "__syncthreads";
  me.state = DeviceThread::State::at_barrier;
  ++num_at_barrier_;
  if (num_at_barrier_ == num_live_) release_barrier();
  next();
}

void Block::release_barrier() {
  for (unsigned i = 0; i < num_threads_; ++i) {
    if (threads_[i].state != DeviceThread::State::at_barrier) continue;
    threads_[i].state = DeviceThread::State::ready;
    woken_.push_back(i);
  }
  num_at_barrier_ = 0;
  ++num_barriers_;
  ++interval_;
  make_ready(woken_);
}

void Block::warp_operation(unsigned mask, WarpOperation operation, void* argument, Site site, const char* what) {
  DeviceThread& me = *now_;
  const unsigned warp = me.seen.warp, lane = me.seen.lane, num_lanes = std::min(32u, num_threads_ - warp * 32);
  if (num_lanes < 32) mask &= (1u << num_lanes) - 1;
  if ((mask >> lane & 1) == 0) throw Error(std::string(what) + ": the mask leaves out the calling lane at " + text(site));
  auto& waiting = pending_[warp];
  auto found = std::find_if(waiting.begin(), waiting.end(), [&](const Pending& p) { return p.mask == mask; });
  if (found == waiting.end()) found = waiting.insert(waiting.end(), Pending{mask, 0, operation, site, what});
  // Operations on fragments are of the whole warp and one instruction; the others only have to be the same operation.
  if (found->operation != operation || (what[0] == '.' && !same(found->site, site)))
    throw Error(std::string("lanes of one warp meet in ") + found->what + " at " + text(found->site) + " and in " + what + " at " + text(site));
  found->arrived |= 1u << lane;
  me.argument = argument;
  me.site = site;
  me.what = what;
  if (found->arrived != mask) {
    me.state = DeviceThread::State::at_warp;
    return next();
  }
  Pending complete_now = *found;
  waiting.erase(found);
  complete(complete_now, lane, warp);
}

// The last lane to arrive does the work for all.
void Block::complete(Pending& pending, unsigned last_lane, unsigned warp) {
  DeviceThread* lanes = &threads_[warp * 32];
  if (pending.operation != nullptr) {
    void* arguments[32] = {};
    for (unsigned l = 0; l < 32; ++l)
      if ((pending.mask >> l & 1) != 0) arguments[l] = lanes[l].argument;
    try {
      pending.operation(arguments, pending.mask);
    } catch (const std::exception& error) {
      throw Error(error.what() + (" at " + text(pending.site)));
    }
  } else {
    order_lanes(lanes, pending.mask, warp_stamps_[warp]);
  }
  for (unsigned l = 0; l < 32; ++l) {
    if ((pending.mask >> l & 1) == 0) continue;
    lanes[l].state = DeviceThread::State::ready;
    if (l != last_lane) woken_.push_back(warp * 32 + l);
  }
  make_ready(woken_);
  // The last lane goes on itself, which saves a switch, unless the order is to be random.
  if (options().order == Order::random && (random() & 1) != 0) {
    ready_.push_back(now_->seen.linear);
    next();
  }
}

}  // namespace refrain::emulator
