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
  LoaderState state;
  std::vector<std::int64_t> order;  // of state.epoch, for upcoming(); empty until asked for
  std::deque<int> held_slots;  // with the caller, oldest first
  double wait_seconds = 0;

  std::mutex mutex;
  std::condition_variable slot_freed, slot_filled;
  std::deque<int> free_slots, full_slots;  // guarded by mutex, as are the two below
  bool is_stopping = false;
  std::exception_ptr error;
  std::thread thread;

  // Only this function runs on the thread; it writes into slots and touches neither arena nor ledger.
  void work(LoaderState at) noexcept try {
    std::vector<std::int64_t> thread_order;
    std::int64_t order_epoch = -1;
    for (;;) {
      if (at.position >= epoch_samples) at = {at.epoch + 1, 0};
      if (order_epoch != at.epoch) thread_order = epoch_order(samples->size(), options.seed, at.epoch, options.shuffle);
      order_epoch = at.epoch;
      int index = -1;
      {
        std::unique_lock lock(mutex);
        slot_freed.wait(lock, [&] { return is_stopping || !free_slots.empty(); });
        if (is_stopping) return;
        index = free_slots.front();
        free_slots.pop_front();
      }
      Slot& slot = slots[std::size_t(index)];
      slot.at = at;
      slot.size = std::min(options.batch, epoch_samples - at.position);
      fill(slot, thread_order);
      at.position += slot.size;
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
    thread = std::thread([this, at = state] { work(at); });
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
  check<DataError>(samples->size() >= 1, "loader: the data set holds no sample");
  impl_->samples = std::move(samples);
  impl_->options = options;
  const std::int64_t size = impl_->samples->size();
  impl_->epoch_samples = options.drop_last ? size / options.batch * options.batch : size;
  check<DataError>(impl_->epoch_samples >= 1, "loader: the data set's ", size, " samples make no whole batch of ", options.batch);

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
  if (self.state.position >= self.epoch_samples) {
    self.state = {self.state.epoch + 1, 0};
    self.order.clear();
    return std::nullopt;
  }
  self.held_slots.push_back(self.wait_for_slot());
  const Slot& slot = self.slots[std::size_t(self.held_slots.back())];
  invariant(slot.at == self.state, "the loader's thread is at another position");
  if (slot.input_upload) {
    slot.input_upload->finish();
    slot.target_upload->finish();
  }
  self.state.position += slot.size;
  return Batch{view::slice(slot.input, 0, 0, slot.size), view::slice(slot.target, 0, 0, slot.size), slot.size, slot.at.position, slot.at.epoch};
}

const LoaderState& Loader::state() const { return impl_->state; }

void Loader::set_state(const LoaderState& state) {
  check(state.epoch >= 0 && state.epoch <= std::numeric_limits<std::uint32_t>::max() && state.position >= 0 && state.position <= impl_->epoch_samples,
        "loader: position ", state.position, " of epoch ", state.epoch, " lies outside an epoch of ", impl_->epoch_samples, " samples");
  impl_->stop();
  impl_->state = state;
  impl_->order.clear();
  impl_->start();
}

Loader::Upcoming Loader::upcoming(std::int64_t num_batches) const {
  Impl& self = *impl_;
  if (self.order.empty()) self.order = epoch_order(self.samples->size(), self.options.seed, self.state.epoch, self.options.shuffle);
  const std::int64_t left = self.epoch_samples - self.state.position;
  Upcoming upcoming;
  upcoming.batches = std::min(num_batches, (left + self.options.batch - 1) / self.options.batch);
  upcoming.samples = std::min(left, upcoming.batches * self.options.batch);
  for (std::int64_t i = 0; i < upcoming.samples; ++i)
    upcoming.targets += self.samples->num_targets(self.order[std::size_t(self.state.position + i)]);
  return upcoming;
}

int Loader::num_held() const { return impl_->options.num_held; }
std::int64_t Loader::num_samples() const { return impl_->epoch_samples; }
std::int64_t Loader::num_batches() const { return (impl_->epoch_samples + impl_->options.batch - 1) / impl_->options.batch; }
double Loader::wait_seconds() const { return impl_->wait_seconds; }

}  // namespace refrain
