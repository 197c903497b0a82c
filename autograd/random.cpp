#include <refrain/autograd/random.h>
#include <refrain/autograd/session.h>

namespace refrain {

namespace {

struct ThreadRandom {
  RandomState state;
  Generator generator;
};

ThreadRandom& thread_random() {
  thread_local ThreadRandom random;
  return random;
}

}  // namespace

RandomState& random_state() { return thread_random().state; }

const Generator& default_generator() { return thread_random().generator; }

void seed_random(std::uint64_t seed) {
  thread_random().state = RandomState{.seed = seed};
  thread_random().generator = Generator(seed);
}

void set_random_position(std::uint32_t step, std::int64_t sample_offset) {
  random_state().step = step;
  random_state().sample_offset = sample_offset;
}

RandomDraw next_random() {
  RandomState& state = random_state();
  if (state.stage == kNoStage) return next_random(default_generator());
  check(state.call < (1u << 16), "more than 65536 random calls in one stage");
  return {RandomKey{state.seed, state.step, state.stage, state.call++, RandomPurpose::forward}, state.sample_offset};
}

RandomDraw next_random(const Generator& generator) {
  if (detail::FirstRun* run = detail::autograd_state().first_run) run->note_generator(generator);
  return {generator.next(), random_state().sample_offset};
}

StageScope::StageScope(std::uint32_t index) : old_stage_(random_state().stage), old_call_(random_state().call) {
  check(index < (1u << 24), "stage index ", index, " is not below 2^24");
  random_state().stage = index;
  random_state().call = 0;
}

StageScope::~StageScope() {
  random_state().stage = old_stage_;
  random_state().call = old_call_;
}

}  // namespace refrain
