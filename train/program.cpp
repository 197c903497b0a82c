#include <refrain/train/program.h>

#include <refrain/autograd/random.h>
#include <refrain/train/setup.h>

namespace refrain {

Program::Program(const Config& given, std::shared_ptr<const Samples> train_samples, std::shared_ptr<const Samples> test_samples,
                 const Device& on_device)
    : config(given), device(on_device) {
  adapt_to_data(config, *train_samples);
  model = build_model(config, device);
  loss = build_loss(config, model);
  optimizer = build_optimizer(config, *model);
  const std::uint64_t seed = std::uint64_t(config.seed);
  loader = std::make_unique<Loader>(std::move(train_samples), LoaderOptions{.batch = config.batch, .seed = seed, .device = device});
  test_loader = std::make_unique<Loader>(std::move(test_samples),
                                         LoaderOptions{.batch = config.eval_batch, .shuffle = false, .num_slots = 2, .device = device});
  const std::int64_t steps_per_epoch = (loader->num_batches() + config.accumulate - 1) / config.accumulate;
  total = total_steps(config, steps_per_epoch);
  trainer = std::make_unique<Trainer>(*loader, *optimizer, build_schedule(config, steps_per_epoch), loss, trainer_options(config));
  seed_random(seed);
}

Evaluation Program::evaluate() const { return refrain::evaluate(*model, *test_loader, loss); }

}  // namespace refrain
