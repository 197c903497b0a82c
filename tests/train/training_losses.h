// The first 50 losses of small models on any device against PyTorch's (tests/fixtures/make_training_losses.py), to 1e-4 relative.
#pragma once

#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/nn/creation.h>
#include <refrain/optim/adam.h>
#include <refrain/optim/schedule.h>
#include <refrain/optim/sgd.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace refrain::testing {

inline constexpr int kNumSteps = 50, kNumBatches = 4;

struct FixtureBatch {
  Tensor input, targets;
};
using MakeBatch = FixtureBatch (*)(int index);

inline FixtureBatch vit_batch(int index) {
  return {fixture::values(concat("images.", index), {8, 3, 16, 16}), fixture::integers(concat("labels.", index), {8}, 10)};
}

inline FixtureBatch gpt2_batch(int index) {
  const Tensor text = fixture::integers(concat("tokens.", index), {4, 17}, 50);
  return {contiguous_values(view::slice(text, 1, 0, 16)), contiguous_values(view::slice(text, 1, 1, 17))};
}

inline std::shared_ptr<ChainModel> make_vit() {
  return std::make_shared<Vit>(VitConfig{.image_height = 16, .image_width = 16, .channels = 3, .patch = 4, .width = 32, .depth = 3,
                                         .num_heads = 4, .mlp_ratio = 2, .num_classes = 10});
}

inline std::shared_ptr<ChainModel> make_gpt2() {
  return std::make_shared<Gpt2>(Gpt2Config{
      .vocabulary = 50, .context = 16, .width = 32, .depth = 3, .num_heads = 4, .mlp_ratio = 4, .dropout = 0, .attention_dropout = 0});
}

inline ParameterGroup group_of(const Module& model, double weight_decay) {
  ParameterGroup group;
  group.weight_decay = weight_decay;
  for (const NamedTensor& t : model.named_parameters()) {
    group.parameters.push_back(t.tensor);
    group.names.push_back(t.name);
  }
  return group;
}

// `name` is of the fixture; the model is made on `device`. Less than all steps where a step takes long.
inline void check_losses(const std::string& name, std::shared_ptr<ChainModel> (*make_model)(), MakeBatch make_batch, const CheckpointPolicy& policy,
                         const Device& device = Device::cpu(), int num_steps = kNumSteps) {
  const CreationScope scope({.device = device});
  const std::shared_ptr<ChainModel> model = make_model();
  for (const NamedTensor& t : model->named_parameters()) copy_values(t.tensor, fixture::parameter(t.name, t.tensor.shape()));
  const bool is_sgd = name.ends_with("_sgd");
  std::unique_ptr<Optimizer> optimizer;
  if (is_sgd) optimizer = std::make_unique<Sgd>(std::vector{group_of(*model, 0)});
  else optimizer = std::make_unique<AdamW>(std::vector{group_of(*model, 0.05)});
  const Schedule schedule = is_sgd ? Schedule::cosine(0.1, kNumSteps) : Schedule::constant(2e-3);
  const auto entries = fixture::read("training_losses.txt");
  REQUIRE(entries.count(name) == 1);
  const std::vector<double>& expected = entries.at(name).values;
  REQUIRE(expected.size() == kNumSteps);
  double worst = 0;
  for (int step = 0; step < num_steps; ++step) {
    const FixtureBatch batch = make_batch(step % kNumBatches);
    const Tensor loss = cross_entropy((*model)(to_device(batch.input, device), policy), to_device(batch.targets, device));
    const double relative = std::abs(loss.item() - expected[std::size_t(step)]) / expected[std::size_t(step)];
    worst = std::isnan(relative) ? HUGE_VAL : std::max(worst, relative);
    optimizer->zero_grad();
    backward(loss);
    optimizer->step(schedule.lr(step));
  }
  INFO(name);
  CHECK(worst < 1e-4);
}

}  // namespace refrain::testing

