// Small trainings on ranks that are threads.
#pragma once

#include <refrain/tests/strategies/small.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>
#include <refrain/train/program.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

namespace refrain::testing {

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<bool> is_applied;
  std::vector<std::vector<float>> weights;  // of every parameter
  double loss_scale = 1;
  std::int64_t bytes_sent = 0;
  Ledger ledger;
};

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
  outcome.loss_scale = program.trainer->scaler().scale();
  outcome.ledger = program.device.ledger();
  outcome.weights = weights_of(program);
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
