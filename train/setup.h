// From a configuration to the things a run is made of: data, model, loss, optimizer, schedule.
#pragma once

#include <refrain/data/samples.h>
#include <refrain/dist/newborn_pieces.h>
#include <refrain/models/chain_model.h>
#include <refrain/train/config.h>
#include <refrain/train/model_loss.h>
#include <refrain/train/trainer.h>

namespace refrain {

// The training or test samples; only training samples are augmented. Throws DataError.
std::shared_ptr<const Samples> load_samples(const Config& config, Split split);

// Fills in what the configuration leaves to the data (0 for image_size, channels, num_classes; eval_batch). Throws
// InvalidArgument where the two contradict each other.
void adapt_to_data(Config& config, const Samples& samples);

// The model with its initial values, parameters frozen as the configuration says.
// `newborn` may take the parameters elsewhere as they are made.
std::shared_ptr<ChainModel> build_model(const Config& config, const Device& device = Device::cpu(), NewbornPieces* newborn = nullptr);

// The regions that the configuration puts over the model's blocks. Throws InvalidArgument for parts the model cannot have, and
// for a budget, which choose_budget() (train/budget/budget.h) turns into parts.
CheckpointPolicy checkpoint_policy(const Config& config, const ChainModel& model);

// Cross-entropy of the model under the configuration's precision and checkpoint policy. Without gradients there is no label smoothing:
// evaluations compare.
std::shared_ptr<const ModelLoss> build_loss(const Config& config, std::shared_ptr<ChainModel> model);

// The model's parameters that are trained, with the configuration's decay. Throws InvalidArgument where all are frozen.
std::vector<ParameterGroup> parameter_groups(const Config& config, const Module& model);
// "auto" in rounding, loss_scale and non_finite means what the precision calls for; a run's config.toml keeps the word.
std::unique_ptr<Optimizer> build_optimizer(const Config& config, std::vector<ParameterGroup> groups);

// Whether parameters and optimizer state live in host memory.
bool offloads_parameters(const Config& config);

// What "auto" in rounding means: nearest or stochastic.
std::string rounding_of(const Config& config);

// The dtype that f32 gradients travel in.
DType gradient_dtype(const Config& config);

TrainerOptions trainer_options(const Config& config);

// Optimizer steps of the whole run.
std::int64_t total_steps(const Config& config, std::int64_t steps_per_epoch);
Schedule build_schedule(const Config& config, std::int64_t steps_per_epoch);

}  // namespace refrain
