// What a snapshot holds: everything the next step depends on. model.safetensors (parameters and buffers),
// optimizer.safetensors (its state), trainer.json (positions and numbers).
#pragma once

#include <refrain/data/loader.h>
#include <refrain/dist/sharded.h>
#include <refrain/nn/module.h>
#include <refrain/optim/optimizer.h>
#include <refrain/train/replica_states.h>

#include <filesystem>
#include <map>
#include <string>

namespace refrain {

struct TrainerState {
  std::int64_t step = 0;                // optimizer steps done
  LoaderState loader;
  std::uint64_t seed = 0;
  std::uint64_t generator_position = 0; // of the thread's default generator
  std::map<std::string, double> scaler; // the loss scaler's
  OptimizerState strategy;              // a strategy's counters, and tensors where it has any
  double train_seconds = 0;
  double replayed_flops = 0, flops = 0; // of the training steps so far
  int num_replicas = 1;                 // whose optimizer states a snapshot that was read has
};

// Writes the snapshot directory RUN/snapshots/step-N, whole or not at all. Throws StorageError. Of a model in pieces every rank of
// the replica calls it, and tensors are gathered one at a time; only the one that `writes` touches the disk.
// Where replicas are not alike, every rank of all of them calls it.
void save_snapshot(const std::filesystem::path& run_dir, const Module& model, const Optimizer& optimizer, const TrainerState& state,
                   Sharded* sharded = nullptr, bool writes = true, const Replicas& replicas = {});

// Reads parameters and buffers alone, converted where the model has another floating dtype, block by block: no second
// tensor is made. Throws DataError, before anything is changed, naming what is missing, unexpected or of another shape.
// Master copies of an optimizer do not follow by themselves: Optimizer::reset_masters.
void load_model(const std::filesystem::path& snapshot, Module& model);

// Reads all of it into model and optimizer. `seed` must be the one the snapshot was made with. Throws DataError, before
// anything is changed, as load_model does, and for another precision than the snapshot's, as bits would differ.
// Tensors of `strategy` are read in place, its numbers come back in the state; those of another strategy are left unread. Of a
// model in pieces each rank reads its own. A replica reads its own optimizer state from a snapshot of as many, else the first's.
TrainerState load_snapshot(const std::filesystem::path& snapshot, Module& model, Optimizer& optimizer, std::uint64_t seed,
                           const OptimizerState& strategy = {}, Sharded* sharded = nullptr, const Replicas& replicas = {});

}  // namespace refrain
