// The training program: everything of a run that takes tensor memory, made in the order a run makes it. A training and
// its plan are this same program, on a device with bytes and on one without.
#pragma once

#include <refrain/data/loader.h>
#include <refrain/models/chain_model.h>
#include <refrain/train/config.h>
#include <refrain/train/strategy.h>
#include <refrain/train/trainer.h>

#include <memory>

namespace refrain {

struct Program {
  // Completes the configuration from the samples, builds all parts, and seeds the thread's random
  // numbers. Throws InvalidArgument where configuration and samples contradict each other. `group`, or null for a world of one,
  // is on the device; every rank has the same samples.
  Program(const Config& given, std::shared_ptr<const Samples> train_samples, std::shared_ptr<const Samples> test_samples,
          const Device& on_device, std::shared_ptr<ProcessGroup> group = nullptr);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Of the weights as they are now, on the test samples.
  Evaluation evaluate() const;

  Config config;  // as resolved
  Device device;
  std::shared_ptr<ChainModel> model;
  LossFunction loss;
  std::unique_ptr<Optimizer> optimizer;
  std::shared_ptr<Strategy> strategy;
  std::unique_ptr<Loader> loader, test_loader;
  std::unique_ptr<Trainer> trainer;
  std::int64_t total = 0;  // optimizer steps of the whole run
};

}  // namespace refrain
