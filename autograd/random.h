// Where forward random numbers come from. Inside a model's stages they are keyed by seed, optimizer step, stage,
// call and the element's index in the global batch, so micro-batches, ranks and replays draw the same ones. Outside
// stages they come from the thread's default generator.
#pragma once

#include <refrain/core/random.h>

namespace refrain {

struct RandomDraw {
  RandomKey key;
  std::int64_t sample_offset = 0;  // index in the global batch of this tensor's sample 0
};

inline constexpr std::uint32_t kNoStage = 0xffffffffu;

// The calling thread's random position. Plain data: a region copies it and puts it back.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;              // optimizer step
  std::uint32_t stage = kNoStage;
  std::uint32_t call = 0;              // random calls made in this stage's forward
  std::int64_t sample_offset = 0;
};
RandomState& random_state();

// Seeds the stages' numbers and the default generator of the calling thread.
void seed_random(std::uint64_t seed);
// The optimizer step and the place of the coming micro-batch in the global batch.
void set_random_position(std::uint32_t step, std::int64_t sample_offset);
const Generator& default_generator();

// The next random call of the running stage, or of the default generator outside stages.
RandomDraw next_random();
// The next random call of a generator of one's own.
RandomDraw next_random(const Generator& generator);

// Random calls in this scope belong to stage `index` (below 2^24) and are counted from 0.
class StageScope {
 public:
  explicit StageScope(std::uint32_t index);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  std::uint32_t old_stage_, old_call_;
};

}  // namespace refrain
