#include <refrain/train/setup.h>

#include <refrain/autograd/precision.h>
#include <refrain/data/cifar10.h>
#include <refrain/data/idx.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>
#include <refrain/optim/all.h>
#include <refrain/train/budget/block_parts.h>

#include <algorithm>
#include <cmath>

namespace refrain {

namespace {

void fill_in(std::int64_t& field, std::int64_t from_data) {
  if (field == 0) field = from_data;
}

// What "auto" means in this precision.
std::string chosen(const std::string& word, std::string_view automatic) { return word == "auto" ? std::string(automatic) : word; }

std::string loss_scale_of(const Config& config) { return chosen(config.loss_scale, config.precision == "16-mixed" ? "dynamic" : "off"); }

std::string non_finite_of(const Config& config) {
  // With a fused update, skipping takes a second backward, which only a dynamic loss scale needs anyway.
  const bool can_skip = config.update != "fused" || (config.accumulate_schedule == "layerwise" && loss_scale_of(config) == "dynamic");
  return chosen(config.non_finite, is_mixed(parse_precision(config.precision)) && can_skip ? "skip" : "stop");
}

}  // namespace

bool offloads_parameters(const Config& config) { return config.offload == "parameters" || config.offload == "all"; }

std::string rounding_of(const Config& config) {
  const bool is_narrow = is_16_bit(parameter_dtype(parse_precision(config.precision)));
  return chosen(config.rounding, is_narrow && !config.master_weights ? "stochastic" : "nearest");
}

DType gradient_dtype(const Config& config) {
  if (config.gradient_compression == "none") return DType::f32;
  return config.gradient_compression == "f16" ? DType::f16 : DType::bf16;
}

std::shared_ptr<const Samples> load_samples(const Config& config, Split split) {
  if (config.data_format == "text") return std::make_shared<TextSamples>(config.data_path, config.context, config.test_share, split);
  const std::shared_ptr<const Dataset> dataset =
      config.data_format == "cifar10" ? load_cifar10(config.data_path, split)
                                      : load_mnist(config.data_path, split, config.num_classes > 0 ? config.num_classes : 10);
  ImageTransform transform{.mean = config.mean, .std = config.std, .seed = std::uint64_t(config.seed)};
  if (split == Split::train) {
    transform.crop_padding = config.crop_padding;
    transform.flip = config.flip;
  }
  return std::make_shared<ImageSamples>(dataset, transform);
}

void adapt_to_data(Config& config, const Samples& samples) {
  fill_in(config.eval_batch, config.batch);
  if (config.model == "gpt2") {
    check(config.vocab >= samples.num_classes(), "vocab: the data has ", samples.num_classes(), " tokens, got ", config.vocab);
    return;
  }
  const Shape shape = samples.input_shape();
  fill_in(config.channels, shape[0]);
  fill_in(config.image_size, shape[1]);
  fill_in(config.num_classes, samples.num_classes());
  check(shape == Shape{config.channels, config.image_size, config.image_size}, "image_size and channels: the data has images ", shape,
        ", got ", Shape{config.channels, config.image_size, config.image_size});
  check(config.num_classes >= samples.num_classes(), "num_classes: the data has ", samples.num_classes(), ", got ", config.num_classes);
  check(config.image_size % config.patch_size == 0, "patch_size: expected a divisor of image_size = ", config.image_size, ", got ",
        config.patch_size);
}

std::shared_ptr<ChainModel> build_model(const Config& config, const Device& device, NewbornPieces* newborn) {
  const PrecisionScope precision(parse_precision(config.precision));
  CreationOptions creating{.device = device, .seed = std::uint64_t(config.seed)};
  if (newborn != nullptr) creating.on_parameter = newborn->hook();
  const CreationScope creation(creating);
  std::shared_ptr<ChainModel> model;
  if (config.model == "gpt2") {
    model = std::make_shared<Gpt2>(Gpt2Config{.vocabulary = config.vocab,
                                              .context = config.context,
                                              .width = config.width,
                                              .depth = config.depth,
                                              .num_heads = config.num_heads,
                                              .mlp_ratio = config.mlp_ratio,
                                              .dropout = config.dropout,
                                              .attention_dropout = config.attention_dropout,
                                              .mlp_chunk = config.mlp_chunk});
  } else {
    model = std::make_shared<Vit>(VitConfig{.image_height = config.image_size,
                                            .image_width = config.image_size,
                                            .channels = config.channels,
                                            .patch = config.patch_size,
                                            .width = config.width,
                                            .depth = config.depth,
                                            .num_heads = config.num_heads,
                                            .mlp_ratio = config.mlp_ratio,
                                            .num_classes = config.num_classes,
                                            .dropout = config.dropout,
                                            .attention_dropout = config.attention_dropout,
                                            .stochastic_depth = config.stochastic_depth,
                                            .mlp_chunk = config.mlp_chunk});
  }
  if (!config.freeze.empty()) model->freeze(config.freeze);
  return model;
}

CheckpointPolicy checkpoint_policy(const Config& config, const ChainModel& model) {
  check(config.checkpoint != "budget", "checkpoint: a budget has to be turned into regions first (train/budget/budget.h)");
  CheckpointPolicy policy{.levels = int(config.checkpoint_levels), .keep = config.checkpoint_keep, .certify = config.certify, .offload = config.offload == "boundaries" || config.offload == "all"};
  if (config.checkpoint != "custom") {
    policy.kind = CheckpointPolicy::parse_kind(config.checkpoint);
    return policy;
  }
  policy.kind = CheckpointKind::custom;
  std::vector<BlockPart> parts;
  for (const std::string& line : config.checkpoint_parts) parts.push_back(parse_block_part(line));
  policy.parts = chain_parts(parts, model.stages());
  return policy;
}

std::shared_ptr<const ModelLoss> build_loss(const Config& config, std::shared_ptr<ChainModel> model) {
  const CheckpointPolicy policy = checkpoint_policy(config, *model);
  return std::make_shared<const ModelLoss>(std::move(model), ModelLossOptions{.policy = policy,
                                                                              .precision = parse_precision(config.precision),
                                                                              .label_smoothing = config.label_smoothing,
                                                                              .chunk_rows = config.loss_chunk});
}

std::vector<ParameterGroup> parameter_groups(const Config& config, const Module& model) {
  std::vector<ParameterGroup> groups = make_groups(model.named_parameters(), config.weight_decay);
  check(!groups.empty(), "freeze: every parameter is frozen, there is nothing to train");
  return groups;
}

std::unique_ptr<Optimizer> build_optimizer(const Config& config, std::vector<ParameterGroup> groups) {
  const AdamOptions adam{.beta1 = config.betas[0], .beta2 = config.betas[1], .eps = config.eps};
  const UpdateOptions update{.rounding = rounding_of(config) == "stochastic" ? Rounding::stochastic : Rounding::nearest,
                             .state = config.optimizer_state == "f32" ? StateDType::f32 : StateDType::same_as_parameter,
                             .master = config.master_weights,
                             .seed = std::uint64_t(config.seed)};
  if (config.optimizer == "adamw") return std::make_unique<AdamW>(std::move(groups), adam, update);
  if (config.optimizer == "adam") return std::make_unique<Adam>(std::move(groups), adam, update);
  return std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = config.momentum, .nesterov = config.nesterov}, update);
}

TrainerOptions trainer_options(const Config& config) {
  TrainerOptions options{.fused_update = config.update == "fused", .accumulate = config.accumulate, .clip_norm = config.clip_norm,
                         .seed = std::uint64_t(config.seed)};
  const std::string loss_scale = loss_scale_of(config), non_finite = non_finite_of(config);
  options.loss_scale = {.mode = loss_scale == "dynamic"  ? ScalerMode::dynamic
                                : loss_scale == "static" ? ScalerMode::fixed
                                                         : ScalerMode::off,
                        .init_scale = config.loss_scale_init,
                        .growth = config.loss_scale_growth,
                        .backoff = config.loss_scale_backoff,
                        .growth_interval = config.loss_scale_interval,
                        .min_scale = config.loss_scale_min,
                        .max_scale = config.loss_scale_max};
  options.non_finite = non_finite == "skip"     ? NonFinitePolicy::skip
                       : non_finite == "report" ? NonFinitePolicy::report
                                                : NonFinitePolicy::stop;
  return options;
}

std::int64_t total_steps(const Config& config, std::int64_t steps_per_epoch) {
  const std::int64_t by_epochs = config.epochs * steps_per_epoch;
  if (config.max_steps == 0) return by_epochs;
  return config.epochs == 0 ? config.max_steps : std::min(by_epochs, config.max_steps);
}

Schedule build_schedule(const Config& config, std::int64_t steps_per_epoch) {
  const std::int64_t total = total_steps(config, steps_per_epoch);
  const std::int64_t by_epochs = std::llround(config.warmup_epochs * double(steps_per_epoch));
  const std::int64_t warmup = std::min(config.warmup_steps > 0 ? config.warmup_steps : by_epochs, total);
  if (config.schedule == "constant") return warmup > 0 ? Schedule::warmup(config.lr, warmup) : Schedule::constant(config.lr);
  return warmup > 0 ? Schedule::cosine_with_warmup(config.lr, total, warmup, config.lr_floor)
                    : Schedule::cosine(config.lr, total, config.lr_floor);
}

}  // namespace refrain
