// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// A number is a pure function of its key and index, so nothing is stored to draw it again.
#pragma once

#include <refrain/core/check.h>

#include <array>
#include <cstdint>
#include <memory>

namespace refrain {

// The ten-round bijection of a 128-bit counter under a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {std::uint32_t(b >> 32) ^ c[1] ^ key0, std::uint32_t(b), std::uint32_t(a >> 32) ^ c[3] ^ key1, std::uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// What a stream of numbers is for; streams of different purposes never meet.
enum class RandomPurpose : std::uint8_t { forward, update, init, data, user };

// Names one stream of random numbers. Element i of the stream is word i % 4 of the Philox block i / 4.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                          // optimizer step, epoch or parameter, as the purpose says
  std::uint32_t stage = 0;                         // below 2^24
  std::uint32_t call = 0;                          // number of the random call inside the stage; below 2^16
  RandomPurpose purpose = RandomPurpose::forward;

  // Counter of block `block` (below 2^48).
  constexpr std::array<std::uint32_t, 4> counter(std::uint64_t block) const {
    return {std::uint32_t(block), std::uint32_t(block >> 32) | (call << 16), step, stage | (std::uint32_t(purpose) << 24)};
  }
  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    return philox4x32(counter(index), std::uint32_t(seed), std::uint32_t(seed >> 32));
  }
  constexpr std::uint32_t word(std::uint64_t element) const { return block(element / 4)[element % 4]; }
  // Uniform in [0, 1), 24 bits.
  constexpr float uniform(std::uint64_t element) const { return float(word(element) >> 8) * 0x1p-24f; }

  friend bool operator==(const RandomKey&, const RandomKey&) = default;
};

// A generator with its own running position, for raw random ops outside a model's stages. Copies share the position;
// a checkpoint region saves and restores it.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : state_(std::make_shared<State>(State{seed, 0})) {}

  // The key of the next random call.
  RandomKey next() const {
    const std::uint64_t position = state_->position++;
    return {state_->seed, std::uint32_t(position >> 16), 0, std::uint32_t(position & 0xffffu), RandomPurpose::user};
  }
  float uniform() const { return next().uniform(0); }
  std::uint64_t seed() const { return state_->seed; }
  std::uint64_t position() const { return state_->position; }
  void set_position(std::uint64_t position) const { state_->position = position; }
  friend bool operator==(const Generator& a, const Generator& b) { return a.state_ == b.state_; }

 private:
  struct State {
    std::uint64_t seed, position;
  };
  std::shared_ptr<State> state_;
};

}  // namespace refrain
