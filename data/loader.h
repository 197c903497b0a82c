// Batches in a reproducible order, prepared by a background thread in slots reserved before the first step; on a CUDA device
// it writes them into pinned memory, one area a slot, and they are copied over while the device computes. The order of an epoch
// is a pure function of seed and epoch, so a position of two numbers is all a resumed run needs.
//
// Of several ranks each has a loader of its own. All know the same order; it goes in windows of world_size × run batches, of
// which rank r takes the r-th run, so that together they hand out every sample once an epoch. At its end a rank may get fewer
// batches than others, or none.
#pragma once

#include <refrain/core/tensor.h>
#include <refrain/data/samples.h>

#include <memory>
#include <optional>

namespace refrain {

struct Batch {
  Tensor input;                // [B, sample shape…]; valid until the loader's num_held-th next call
  Tensor target;               // i64 [B, target shape…]
  std::int64_t size = 0;       // B; the last batch of an epoch may be short
  std::int64_t first = 0;      // its first sample's place in the epoch's order
  std::int64_t epoch = 0;
  bool is_blank = false;       // made of zeros, for a rank that has no batch where others have one; counts for nothing
};

// Where training stands: `position` samples of `epoch` have been handed out, by all ranks together. Inside a window it is where
// this rank's next batch begins, and once this rank's run is out, where the next window begins.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

struct LoaderOptions {
  std::int64_t batch = 64;
  bool shuffle = true;
  bool drop_last = false;      // leaves out a short last batch
  std::uint64_t seed = 0;
  int num_held = 1;            // batches that are valid at a time
  int num_slots = 3;           // those, and what is prepared meanwhile
  int rank = 0, world_size = 1;
  std::int64_t run = 1;        // a rank's batches of a window; of no meaning in a world of one
  Device device = Device::cpu();
};

// Sample indices of an epoch in their order: Fisher-Yates with Philox words of (seed, epoch).
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle);

class Loader {
 public:
  // Throws DataError when there is no sample, or no whole batch with drop_last; InvalidArgument for options out of range.
  Loader(std::shared_ptr<const Samples> samples, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, or nothing at the end of an epoch; the call after that begins the next one. Waits for the background
  // thread and throws what went wrong there. A rank that has no batch in the epoch's last window must skip() it first.
  std::optional<Batch> next();
  // Goes on to the next window without a batch, for a rank that has none in this one.
  void skip();

  // A batch of one sample of zeros.
  Batch blank() const;

  LoaderState state() const;
  // Continues from any position; a window begins there, whatever the world it was saved in. Throws InvalidArgument when it
  // lies outside the epoch.
  void set_state(const LoaderState& state);

  // What the next `num_batches` batches hold, without reading them; fewer at the end of the epoch, never beyond it. Where
  // there are several ranks, they must be what is left of this rank's run, and the window's totals are known to every rank.
  struct Upcoming {
    std::int64_t batches = 0, samples = 0, targets = 0;              // of this rank
    std::int64_t all_batches = 0, all_samples = 0, all_targets = 0;  // of all ranks
    std::int64_t first = 0;  // place of this rank's first sample in the window
  };
  Upcoming upcoming(std::int64_t num_batches) const;
  bool is_at_end() const;             // of the epoch, for all ranks

  int num_held() const;               // batches that are valid at a time
  std::int64_t num_samples() const;   // of an epoch and all ranks, without what drop_last leaves out
  std::int64_t num_batches() const;   // likewise
  int world_size() const;
  const Device& device() const;
  double wait_seconds() const;        // spent in next() for data, so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refrain
