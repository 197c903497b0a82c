#include <refrain/train/program.h>

#include <refrain/autograd/random.h>
#include <refrain/train/setup.h>

#include <algorithm>

namespace refrain {

Program::Program(const Config& given, std::shared_ptr<const Samples> train_samples, std::shared_ptr<const Samples> test_samples,
                 const Device& on_device, std::shared_ptr<ProcessGroup> group)
    : config(given), device(on_device) {
  adapt_to_data(config, *train_samples);
  if (group == nullptr) group = single_group(device);
  const std::unique_ptr<NewbornPieces> newborn = newborn_pieces(config, device, group->rank(), group->world_size());
  model = build_model(config, device, newborn.get());
  const std::shared_ptr<const ModelLoss> model_loss = build_loss(config, model);
  loss = loss_function(model_loss);
  strategy = build_strategy(config, std::move(group), *model, newborn.get());
  optimizer = build_optimizer(config, strategy->pieces_of(parameter_groups(config, *model)));
  strategy->attach(*optimizer);
  const int rank = strategy->rank(), world_size = strategy->world_size();
  const std::uint64_t seed = std::uint64_t(config.seed);
  const bool is_layerwise = config.accumulate_schedule == "layerwise";
  LoaderOptions loading{
      .batch = config.batch, .seed = seed, .rank = rank, .world_size = world_size, .run = config.accumulate, .device = device};
  if (is_layerwise) {
    // A window's batches are all in use at a time; two more are prepared meanwhile.
    const std::int64_t batches = (train_samples->size() + config.batch - 1) / config.batch;
    loading.num_held = int(std::min(config.accumulate, batches));
    loading.num_slots = loading.num_held + 2;
  }
  loader = std::make_unique<Loader>(std::move(train_samples), loading);
  test_loader = std::make_unique<Loader>(std::move(test_samples),
                                         LoaderOptions{.batch = config.eval_batch, .shuffle = false, .num_slots = 2, .rank = rank,
                                                       .world_size = world_size, .device = device});
  const std::int64_t window = config.accumulate * world_size;
  const std::int64_t steps_per_epoch = (loader->num_batches() + window - 1) / window;
  total = total_steps(config, steps_per_epoch);
  TrainerOptions options = trainer_options(config);
  if (is_layerwise) options.layerwise = model_loss;
  options.strategy = strategy;
  trainer = std::make_unique<Trainer>(*loader, *optimizer, build_schedule(config, steps_per_epoch), loss, options);
  seed_random(seed);
}

Evaluation Program::evaluate() const { return refrain::evaluate(*model, *test_loader, loss, strategy.get()); }

}  // namespace refrain
