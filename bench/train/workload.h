// The named trainings that bench_train and its peers measure: model, batch and checkpoint policy; plain SGD, no
// dropout, random inputs, in any precision mode. bench/peers/torch_train.py holds the same table.
#pragma once

#include <refrain/autograd/precision.h>
#include <refrain/core/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::bench {

struct Workload {
  std::string name, description;
  std::int64_t batch;
  bool checkpoint;  // a region per block
};

const std::vector<Workload>& workloads();

// A training that is ready to run; holds model, optimizer and one batch.
struct Training {
  std::int64_t num_parameters = 0;
  std::int64_t samples_per_step = 0;
  std::function<double()> step;  // forward, loss, backward, update; returns the loss
};

struct TrainingOptions {
  std::int64_t batch = 0;  // above 0 it replaces the workload's
  Precision precision = Precision::f32_true;
  Device device = Device::cpu();
};

// Throws InvalidArgument for an unknown name, listing the known ones.
Training make_training(std::string_view name, const TrainingOptions& options);

}  // namespace refrain::bench
