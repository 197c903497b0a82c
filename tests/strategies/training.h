// Small trainings on ranks that are threads: a ViT and a decoder on made-up samples.
#pragma once

#include <refrain/core/random.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>
#include <refrain/train/program.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

namespace refrain::testing {

// Sample i is a function of i: an image of 2 x 8 x 8, or 8 tokens of 11.
class MadeUpSamples : public Samples {
 public:
  MadeUpSamples(bool is_text, std::int64_t size) : is_text_(is_text), size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return is_text_ ? Shape{8} : Shape{2, 8, 8}; }
  DType input_dtype() const override { return is_text_ ? DType::i64 : DType::f32; }
  Shape target_shape() const override { return is_text_ ? Shape{8} : Shape{}; }
  std::int64_t num_classes() const override { return is_text_ ? 11 : 5; }
  std::int64_t num_targets(std::int64_t) const override { return is_text_ ? 8 : 1; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    const RandomKey key{.seed = 11, .step = std::uint32_t(index), .purpose = RandomPurpose::data};
    if (is_text_) {
      auto* tokens = reinterpret_cast<std::int64_t*>(input);
      for (int i = 0; i < 8; ++i) tokens[i] = std::int64_t(key.uniform(std::uint64_t(i)) * 11);
      for (int i = 0; i < 8; ++i) target[i] = i + 1 < 8 ? tokens[i + 1] : tokens[0];
      return;
    }
    auto* pixels = reinterpret_cast<float*>(input);
    for (int i = 0; i < 128; ++i) pixels[i] = 2 * key.uniform(std::uint64_t(i)) - 1;
    *target = std::int64_t(key.uniform(500) * 5);
  }

 private:
  bool is_text_;
  std::int64_t size_;
};

inline Config small_config(bool is_text) {
  Config config;
  config.model = is_text ? "gpt2" : "vit";
  config.data_format = is_text ? "text" : "idx";
  config.vocab = 11;
  config.context = 8;
  config.image_size = 8;
  config.patch_size = 4;
  config.channels = 2;
  config.num_classes = 5;
  config.width = 16;
  config.depth = 2;
  config.num_heads = 2;
  config.batch = 3;
  config.lr = 0.05;
  config.seed = 5;
  config.schedule = "constant";
  config.bucket_bytes.value = 2048;  // several buckets
  return config;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<bool> is_applied;
  std::vector<std::vector<float>> weights;  // of every parameter
  double loss_scale = 1;
  std::int64_t bytes_sent = 0;
  Ledger ledger;
};

inline std::vector<std::vector<float>> weights_of(const Module& model) {
  std::vector<std::vector<float>> all;
  for (const NamedTensor& entry : model.named_parameters()) all.push_back(entry.tensor.to_vector<float>());
  return all;
}

// So many steps, through ends of epochs.
inline Outcome train_steps(Program& program, int num_steps) {
  Outcome outcome;
  while (int(outcome.losses.size()) < num_steps) {
    const std::optional<StepResult> step = program.trainer->step();
    if (!step) continue;
    outcome.losses.push_back(step->loss);
    outcome.norms.push_back(step->grad_norm);
    outcome.is_applied.push_back(step->is_applied);
  }
  outcome.weights = weights_of(*program.model);
  outcome.loss_scale = program.trainer->scaler().scale();
  outcome.ledger = program.device.ledger();
  return outcome;
}

inline Outcome train_alone(const Config& config, std::int64_t num_samples, int num_steps) {
  const bool is_text = config.model == "gpt2";
  Program program(config, std::make_shared<MadeUpSamples>(is_text, num_samples), std::make_shared<MadeUpSamples>(is_text, 6),
                  Device::new_cpu());
  return train_steps(program, num_steps);
}

// Every rank's outcome. `prepare` may change a rank's program before its first step.
inline std::vector<Outcome> train_ranks(int world_size, const Config& config, std::int64_t num_samples, int num_steps,
                                        const std::function<void(Program&)>& prepare = {}) {
  const bool is_text = config.model == "gpt2";
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world_size));
  run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    Program program(config, std::make_shared<MadeUpSamples>(is_text, num_samples), std::make_shared<MadeUpSamples>(is_text, 6),
                    group->device(), group);
    if (prepare) prepare(program);
    outcomes[std::size_t(group->rank())] = train_steps(program, num_steps);
    outcomes[std::size_t(group->rank())].bytes_sent = group->bytes_sent();
  });
  return outcomes;
}

inline double largest_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(double(a[i][j]) - double(b[i][j])));
  }
  return largest;
}

}  // namespace refrain::testing
