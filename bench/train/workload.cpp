#include <refrain/bench/train/workload.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/tape.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>
#include <refrain/nn/creation.h>
#include <refrain/optim/grad_scaler.h>
#include <refrain/optim/sgd.h>

namespace refrain::bench {

namespace {

constexpr double kLearningRate = 0.01;

VitConfig small_vit() {
  VitConfig config;
  config.image_height = config.image_width = 28;
  config.channels = 1;
  config.patch = 4;
  config.width = 64;
  config.depth = 6;
  config.num_heads = 4;
  config.num_classes = 10;
  return config;
}

Gpt2Config small_gpt2() {
  Gpt2Config config;
  config.vocabulary = 256;
  config.context = 256;
  config.width = 384;
  config.depth = 6;
  config.num_heads = 6;
  config.dropout = config.attention_dropout = 0;
  return config;
}

VitConfig vit_l() {
  VitConfig config = vit_config("vit_l_16");
  config.num_classes = 10;
  return config;
}

Tensor random_images(const Shape& shape, const Device& device) {
  const KindScope kind(MemoryKind::input);
  const Tensor images = empty(shape, DType::f32, device);
  Init::normal(0, 1).fill(images, {.seed = 1, .purpose = RandomPurpose::data});
  return images;
}

Tensor random_integers(const Shape& shape, std::int64_t below, std::uint64_t seed, const Device& device) {
  const KindScope kind(MemoryKind::input);
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::data};
  std::vector<std::int64_t> values(std::size_t(numel_of(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::int64_t(key.word(i)) % below;
  return from_values(values, shape, device);
}

// What a training takes besides its model.
struct Settings {
  std::int64_t batch;
  bool checkpoint;
  Precision precision;
  Device device;
};

Training training(std::shared_ptr<const ChainModel> model, const Tensor& input, const Tensor& targets, const Settings& settings) {
  CheckpointPolicy policy;
  if (settings.checkpoint) policy.kind = CheckpointKind::block;
  const bool is_narrow = is_16_bit(parameter_dtype(settings.precision));
  const UpdateOptions update{.rounding = is_narrow ? Rounding::stochastic : Rounding::nearest};
  auto optimizer = std::make_shared<Sgd>(std::vector<ParameterGroup>{{.parameters = model->parameters()}}, SgdOptions{}, update);
  auto scaler = std::make_shared<GradScaler>(
      GradScalerOptions{.mode = settings.precision == Precision::f16_mixed ? ScalerMode::dynamic : ScalerMode::off});
  return {.num_parameters = model->num_parameters(), .samples_per_step = input.dim(0), .step = [=, precision = settings.precision] {
            Tensor loss;
            {
              const PrecisionScope scope(precision);
              loss = cross_entropy((*model)(input, policy), targets);
            }
            backward(loss, {.grad_out = full(loss.shape(), scaler->scale(), loss.dtype(), loss.device())});
            const PhaseScope phase(Phase::update);
            GradScaler::Unscaled gradients;
            if (scaler->options().mode != ScalerMode::off) gradients = scaler->check(optimizer->parameters());
            if (scaler->update(gradients.is_finite)) optimizer->step(kLearningRate, gradients.grad_scale);
            optimizer->zero_grad();
            return loss.has_bytes() ? loss.item() : 0;
          }};
}

Training vit_training(const VitConfig& config, const Settings& settings) {
  const Tensor images = random_images({settings.batch, config.channels, config.image_height, config.image_width}, settings.device);
  return training(std::make_shared<Vit>(config), images, random_integers({settings.batch}, config.num_classes, 2, settings.device), settings);
}

Training gpt2_training(const Gpt2Config& config, const Settings& settings) {
  const Shape shape{settings.batch, config.context};
  const Tensor tokens = random_integers(shape, config.vocabulary, 1, settings.device);
  return training(std::make_shared<Gpt2>(config), tokens, random_integers(shape, config.vocabulary, 2, settings.device), settings);
}

Gpt2Config gpt2_124m() {
  Gpt2Config config = gpt2_config("gpt2");
  config.dropout = config.attention_dropout = 0;
  return config;
}

}  // namespace

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = {
      {"vit-s-16", "ViT-S/16, 224 × 224 × 3, 1000 classes", 8, false},
      {"vit-s-16-checkpoint", "the same with a checkpoint per block", 8, true},
      {"vit-28", "ViT on 28 × 28 × 1: patch 4, width 64, depth 6, 4 heads, 10 classes", 128, false},
      {"gpt2-bytes", "GPT-2 style over bytes: 256 tokens, width 384, depth 6, 6 heads", 8, false},
      {"vit-l-16", "ViT-L/16, 224 × 224 × 3, 10 classes", 64, false},
      {"vit-l-16-checkpoint", "the same with a checkpoint per block", 64, true},
      {"gpt2-124m", "GPT-2 small: 1024 tokens of 50257, width 768, depth 12, 12 heads", 32, false},
  };
  return all;
}

Training make_training(std::string_view name, const TrainingOptions& options) {
  std::string known;
  for (const Workload& w : workloads()) {
    known += (known.empty() ? "" : ", ") + w.name;
    if (w.name != name) continue;
    const PrecisionScope scope(options.precision);
    const CreationScope creation({.device = options.device});
    const Settings settings{options.batch > 0 ? options.batch : w.batch, w.checkpoint, options.precision, options.device};
    if (name == "vit-28") return vit_training(small_vit(), settings);
    if (name == "gpt2-bytes") return gpt2_training(small_gpt2(), settings);
    if (name == "gpt2-124m") return gpt2_training(gpt2_124m(), settings);
    if (name.starts_with("vit-l-16")) return vit_training(vit_l(), settings);
    return vit_training(vit_config("vit_s_16"), settings);
  }
  fail("--model: expected one of ", known, "; got '", name, "'");
}

}  // namespace refrain::bench
