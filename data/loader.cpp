#include <refrain/data/loader.h>

#include <refrain/core/context.h>
#include <refrain/core/cuda/backend.h>
#include <refrain/core/random.h>
#include <refrain/core/view.h>

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

namespace refrain {

namespace {

constexpr std::uint32_t kShuffleStage = 1;  // stage 0 of purpose data belongs to the samples' own augmentation

struct Slot {
  Tensor input, target;
  std::unique_ptr<detail::Upload> input_upload, target_upload;  // of a CUDA device only
  LoaderState at;
  std::int64_t size = 0;
};

// The batches of one rank, one after the other.
struct RankWalk {
  std::int64_t batch, run, world_size, rank, epoch_samples;
  LoaderState window;       // where it begins
  std::int64_t taken = 0;   // batches of this rank's run that are out

  std::int64_t begin_of(std::int64_t index) const {
    return std::min(window.position + (rank * run + index) * batch, epoch_samples);
  }
  std::int64_t window_end() const { return std::min(window.position + world_size * run * batch, epoch_samples); }
  bool has_batch() const { return taken < run && begin_of(taken) < epoch_samples; }
  // The epoch has nothing left, for any rank.
  bool is_at_end() const { return window.position >= epoch_samples; }

  LoaderState state() const { return {window.epoch, taken == 0 ? window.position : begin_of(taken)}; }
  std::int64_t size() const { return begin_of(taken + 1) - begin_of(taken); }
  void take() {
    ++taken;
    if (!has_batch()) skip();
  }
  void skip() {
    window.position = window_end();
    taken = 0;
  }
  void begin_epoch() { *this = {batch, run, world_size, rank, epoch_samples, {window.epoch + 1, 0}}; }
};

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  const RandomKey key{.seed = seed, .step = std::uint32_t(epoch), .stage = kShuffleStage, .purpose = RandomPurpose::data};
  for (std::int64_t i = 0; i < size - 1; ++i) {
    const std::array<std::uint32_t, 4> words = key.block(std::uint64_t(i));
    const std::uint64_t word = std::uint64_t(words[0]) << 32 | words[1];
    const auto offset = static_cast<std::int64_t>(static_cast<unsigned __int128>(word) * static_cast<std::uint64_t>(size - i) >> 64);
    std::swap(order[std::size_t(i)], order[std::size_t(i + offset)]);
  }
  return order;
}

struct Loader::Impl {
  std::shared_ptr<const Samples> samples;
  LoaderOptions options;
  std::int64_t epoch_samples = 0;
  std::vector<Slot> slots;
  RankWalk walk;
  std::vector<std::int64_t> order;  // of walk.window.epoch, for upcoming(); empty until asked for
  std::deque<int> held_slots;  // with the caller, oldest first
  double wait_seconds = 0;

  std::mutex mutex;
  std::condition_variable slot_freed, slot_filled;
  std::deque<int> free_slots, full_slots;  // guarded by mutex, as are the two below
  bool is_stopping = false;
  std::exception_ptr error;
  std::thread thread;

  // Only this function runs on the thread; it writes into slots and touches neither arena nor ledger.
  void work(RankWalk at) noexcept try {
    std::vector<std::int64_t> thread_order;
    std::int64_t order_epoch = -1;
    for (;;) {
      if (at.is_at_end()) at.begin_epoch();
      if (!at.has_batch()) {
        // Nothing for this rank, in this epoch or in any.
        if (at.rank * at.run * at.batch >= epoch_samples) return;
        at.skip();
        continue;
      }
      if (order_epoch != at.window.epoch) thread_order = epoch_order(samples->size(), options.seed, at.window.epoch, options.shuffle);
      order_epoch = at.window.epoch;
      int index = -1;
      {
        std::unique_lock lock(mutex);
        slot_freed.wait(lock, [&] { return is_stopping || !free_slots.empty(); });
        if (is_stopping) return;
        index = free_slots.front();
        free_slots.pop_front();
      }
      Slot& slot = slots[std::size_t(index)];
      slot.at = {at.window.epoch, at.begin_of(at.taken)};
      slot.size = at.size();
      fill(slot, thread_order);
      at.take();
      std::lock_guard lock(mutex);
      full_slots.push_back(index);
      slot_filled.notify_one();
    }
  } catch (...) {
    std::lock_guard lock(mutex);
    error = std::current_exception();
    slot_filled.notify_one();
  }

  void fill(Slot& slot, const std::vector<std::int64_t>& indices) const {
    if (!slot.input.has_bytes()) return;  // a plan: sizes are enough
    const std::int64_t input_bytes = slot.input.bytes() / options.batch, target_numel = slot.target.numel() / options.batch;
    // Samples are written where the device reads them, or where it copies them from while it computes.
    std::byte* input = slot.input_upload ? slot.input_upload->host() : slot.input.address();
    auto* target = reinterpret_cast<std::int64_t*>(slot.target_upload ? slot.target_upload->host() : slot.target.address());
    for (std::int64_t i = 0; i < slot.size; ++i)
      samples->write(indices[std::size_t(slot.at.position + i)], std::uint32_t(slot.at.epoch), input + i * input_bytes, target + i * target_numel);
    if (!slot.input_upload) return;
    slot.input_upload->start(slot.input.address(), slot.size * input_bytes);
    slot.target_upload->start(slot.target.address(), slot.size * target_numel * std::int64_t(sizeof(std::int64_t)));
  }

  void start() {
    free_slots.clear();
    full_slots.clear();
    for (int i = 0; i < options.num_slots; ++i) free_slots.push_back(i);
    for (Slot& slot : slots) release(slot);
    held_slots.clear();
    is_stopping = false;
    error = nullptr;
    // Signals are for the thread that trains.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    thread = std::thread([this, at = walk] { work(at); });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  void stop() {
    {
      std::lock_guard lock(mutex);
      is_stopping = true;
    }
    slot_freed.notify_one();
    if (thread.joinable()) thread.join();
  }

  // Work that the device has been given until now may read the slot; an upload into it has to wait for that.
  static void release(Slot& slot) {
    if (!slot.input_upload) return;
    slot.input_upload->release();
    slot.target_upload->release();
  }

  // Leaves at most `most` batches with the caller.
  void give_back_held_slots(int most) {
    while (int(held_slots.size()) > most) {
      const int index = held_slots.front();
      held_slots.pop_front();
      // What still reads the old batch must notice that it is gone.
      Slot& slot = slots[std::size_t(index)];
      slot.input.storage()->bump_version();
      slot.target.storage()->bump_version();
      release(slot);
      std::lock_guard lock(mutex);
      free_slots.push_back(index);
      slot_freed.notify_one();
    }
  }

  int wait_for_slot() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    slot_filled.wait(lock, [&] { return error || !full_slots.empty(); });
    wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (full_slots.empty()) std::rethrow_exception(error);
    const int index = full_slots.front();
    full_slots.pop_front();
    return index;
  }
};

Loader::Loader(std::shared_ptr<const Samples> samples, const LoaderOptions& options) : impl_(std::make_unique<Impl>()) {
  check(options.batch >= 1, "loader: expected a batch of at least 1, got ", options.batch);
  check(options.num_held >= 1, "loader: expected to hold at least 1 batch, got ", options.num_held);
  check(options.num_slots > options.num_held, "loader: expected more than ", options.num_held, " slots, got ", options.num_slots);
  check(options.run >= 1, "loader: expected a run of at least 1 batch, got ", options.run);
  check(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size, "loader: there is no rank ", options.rank,
        " in a world of ", options.world_size);
  check<DataError>(samples->size() >= 1, "loader: the data set holds no sample");
  impl_->samples = std::move(samples);
  impl_->options = options;
  const std::int64_t size = impl_->samples->size();
  impl_->epoch_samples = options.drop_last ? size / options.batch * options.batch : size;
  check<DataError>(impl_->epoch_samples >= 1, "loader: the data set's ", size, " samples make no whole batch of ", options.batch);

  impl_->walk = {options.batch, options.world_size > 1 ? options.run : 1, options.world_size, options.rank, impl_->epoch_samples, {}};

  const KindScope kind(MemoryKind::input);
  const ModuleScope module("data");
  Shape input = impl_->samples->input_shape(), target = impl_->samples->target_shape();
  input.insert(0, options.batch);
  target.insert(0, options.batch);
  for (int i = 0; i < options.num_slots; ++i) {
    Slot& slot = impl_->slots.emplace_back();
    slot.input = empty(input, impl_->samples->input_dtype(), options.device);
    slot.target = empty(target, DType::i64, options.device);
    if (options.device.kind() == DeviceKind::cuda) {
      slot.input_upload = detail::new_upload(options.device, slot.input.bytes());
      slot.target_upload = detail::new_upload(options.device, slot.target.bytes());
    }
  }
  impl_->start();
}

Loader::~Loader() { impl_->stop(); }

std::optional<Batch> Loader::next() {
  Impl& self = *impl_;
  self.give_back_held_slots(self.options.num_held - 1);
  if (self.walk.is_at_end()) {
    self.walk.begin_epoch();
    self.order.clear();
    return std::nullopt;
  }
  check(self.walk.has_batch(), "loader: rank ", self.options.rank, " has no batch in this window; it is to be skipped");
  self.held_slots.push_back(self.wait_for_slot());
  const Slot& slot = self.slots[std::size_t(self.held_slots.back())];
  invariant(slot.at == LoaderState{self.walk.window.epoch, self.walk.begin_of(self.walk.taken)}, "the loader's thread is at another position");
  if (slot.input_upload) {
    slot.input_upload->finish();
    slot.target_upload->finish();
  }
  self.walk.take();
  return Batch{view::slice(slot.input, 0, 0, slot.size), view::slice(slot.target, 0, 0, slot.size), slot.size, slot.at.position, slot.at.epoch};
}

void Loader::skip() {
  check(!impl_->walk.has_batch(), "loader: rank ", impl_->options.rank, " has a batch in this window, which it cannot skip");
  impl_->walk.skip();
}

Batch Loader::blank() const {
  Shape input = impl_->samples->input_shape(), target = impl_->samples->target_shape();
  input.insert(0, 1);
  target.insert(0, 1);
  Batch batch{.input = zeros(input, impl_->samples->input_dtype(), device()), .target = zeros(target, DType::i64, device()), .size = 1};
  batch.is_blank = true;
  return batch;
}

const Device& Loader::device() const { return impl_->options.device; }

LoaderState Loader::state() const { return impl_->walk.state(); }

void Loader::set_state(const LoaderState& state) {
  check(state.epoch >= 0 && state.epoch <= std::numeric_limits<std::uint32_t>::max() && state.position >= 0 && state.position <= impl_->epoch_samples,
        "loader: position ", state.position, " of epoch ", state.epoch, " lies outside an epoch of ", impl_->epoch_samples, " samples");
  impl_->stop();
  impl_->walk.window = state;
  impl_->walk.taken = 0;
  impl_->order.clear();
  impl_->start();
}

Loader::Upcoming Loader::upcoming(std::int64_t num_batches) const {
  Impl& self = *impl_;
  const RankWalk& walk = self.walk;
  if (self.order.empty()) self.order = epoch_order(self.samples->size(), self.options.seed, walk.window.epoch, self.options.shuffle);
  const auto targets = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t count = 0;
    for (std::int64_t i = begin; i < end; ++i) count += self.samples->num_targets(self.order[std::size_t(i)]);
    return count;
  };
  const auto batches = [&](std::int64_t samples) { return (samples + self.options.batch - 1) / self.options.batch; };
  const bool is_alone = self.options.world_size == 1;
  check(is_alone || num_batches == walk.run - walk.taken, "loader: rank ", self.options.rank, " has ", walk.run - walk.taken,
        " batches of its run left, asked about ", num_batches);
  const std::int64_t begin = is_alone ? walk.window.position : walk.begin_of(walk.taken);
  const std::int64_t end = is_alone ? begin + std::min(self.epoch_samples - begin, num_batches * self.options.batch) : walk.begin_of(walk.run);
  Upcoming upcoming{.batches = batches(end - begin), .samples = end - begin, .targets = targets(begin, end)};
  upcoming.first = begin - walk.window.position;
  upcoming.all_batches = upcoming.batches;
  upcoming.all_samples = upcoming.samples;
  upcoming.all_targets = upcoming.targets;
  if (is_alone) return upcoming;
  const std::int64_t window_end = walk.window_end();
  upcoming.all_samples = window_end - walk.window.position;
  upcoming.all_batches = batches(upcoming.all_samples);
  upcoming.all_targets = targets(walk.window.position, window_end);
  return upcoming;
}

bool Loader::is_at_end() const { return impl_->walk.is_at_end(); }
int Loader::num_held() const { return impl_->options.num_held; }
std::int64_t Loader::num_samples() const { return impl_->epoch_samples; }
std::int64_t Loader::num_batches() const { return (impl_->epoch_samples + impl_->options.batch - 1) / impl_->options.batch; }
int Loader::world_size() const { return impl_->options.world_size; }
double Loader::wait_seconds() const { return impl_->wait_seconds; }

}  // namespace refrain
