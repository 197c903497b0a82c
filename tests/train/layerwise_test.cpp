// Layer-by-layer accumulation against the ordinary loop over the same micro-batches: bits of weights, optimizer state, losses
// and norms, and how few gradients are alive.
#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>
#include <refrain/optim/all.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>
#include <refrain/train/layerwise.h>
#include <refrain/train/trainer.h>

#include <cstring>

using namespace refrain;

namespace {

// Images or tokens from a fixed sequence.
class FixtureSamples : public Samples {
 public:
  FixtureSamples(bool is_vit, std::int64_t size) : is_vit_(is_vit), size_(size) {
    if (is_vit) images_ = fixture::values("layerwise images", {size, 2, 8, 8}).to_vector<float>();
    else tokens_ = fixture::integers("layerwise tokens", {size, 7}, 11).to_vector<std::int64_t>();
    targets_ = fixture::integers("layerwise targets", {size, is_vit ? 1 : 7}, is_vit ? 5 : 11).to_vector<std::int64_t>();
  }
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return is_vit_ ? Shape{2, 8, 8} : Shape{7}; }
  DType input_dtype() const override { return is_vit_ ? DType::f32 : DType::i64; }
  Shape target_shape() const override { return is_vit_ ? Shape{} : Shape{7}; }
  std::int64_t num_classes() const override { return is_vit_ ? 5 : 11; }
  std::int64_t num_targets(std::int64_t) const override { return is_vit_ ? 1 : 7; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    const std::size_t i = std::size_t(index);
    if (is_vit_) std::memcpy(input, images_.data() + i * 128, 128 * sizeof(float));
    else std::memcpy(input, tokens_.data() + i * 7, 7 * sizeof(std::int64_t));
    const std::size_t targets = is_vit_ ? 1 : 7;
    std::memcpy(target, targets_.data() + i * targets, targets * sizeof(std::int64_t));
  }

 private:
  bool is_vit_;
  std::int64_t size_;
  std::vector<float> images_;
  std::vector<std::int64_t> tokens_, targets_;
};

struct Setting {
  bool is_vit = true;
  std::string optimizer = "sgd";
  Precision precision = Precision::f32_true;
  CheckpointPolicy policy = {};
  std::int64_t accumulate = 3;
  double clip_norm = 0;
  ScalerMode scaler = ScalerMode::off;
  double init_scale = 65536;
  NonFinitePolicy non_finite = NonFinitePolicy::stop;
  bool certify = false;
  std::vector<std::string> freeze = {};
  std::int64_t chunk_rows = 0;
};

struct Course {
  std::vector<std::vector<float>> parameters;
  std::vector<double> losses, norms;
  std::vector<std::int64_t> correct;
  std::vector<bool> applied;
  std::vector<std::string> notes;
  std::int64_t gradient_peak = 0, saved_peak = 0, live = 0;
  friend bool operator==(const Course& a, const Course& b) {
    return a.parameters == b.parameters && a.losses == b.losses && a.norms == b.norms && a.correct == b.correct && a.applied == b.applied;
  }
};

enum class Way { ordinary, layerwise, layerwise_fused };

// Two epochs of 14 samples in batches of 2: windows of 3, 3 and 1 micro-batches.
Course train(const Setting& s, Way way) {
  const Device device = Device::new_cpu();
  const PrecisionScope precision(s.precision);
  const CreationScope scope({.device = device, .seed = 3});
  std::shared_ptr<ChainModel> model;
  if (s.is_vit) model = std::make_shared<Vit>(VitConfig{.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 5, .num_heads = 2, .num_classes = 5, .dropout = 0.1, .stochastic_depth = 0.1});
  else model = std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 11, .context = 8, .width = 16, .depth = 4, .num_heads = 2});
  if (!s.freeze.empty()) model->freeze(s.freeze);
  std::vector<ParameterGroup> groups = make_groups(model->named_parameters(), 0.1);
  const UpdateOptions update{.rounding = is_16_bit(parameter_dtype(s.precision)) ? Rounding::stochastic : Rounding::nearest};
  std::unique_ptr<Optimizer> optimizer;
  if (s.optimizer == "adamw") optimizer = std::make_unique<AdamW>(std::move(groups), AdamOptions{.eps = 1e-3}, update);
  else optimizer = std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = s.optimizer == "momentum" ? 0.9 : 0}, update);
  CheckpointPolicy policy = s.policy;
  policy.certify = s.certify;
  const auto loss = std::make_shared<const ModelLoss>(model, ModelLossOptions{.policy = policy, .precision = s.precision, .label_smoothing = 0.1, .chunk_rows = s.chunk_rows});
  const bool is_layerwise = way != Way::ordinary;
  Loader loader(std::make_shared<FixtureSamples>(s.is_vit, 14),
                {.batch = 2, .seed = 5, .num_held = is_layerwise ? int(s.accumulate) : 1, .num_slots = is_layerwise ? int(s.accumulate) + 2 : 3, .device = device});
  TrainerOptions options{.fused_update = way == Way::layerwise_fused, .accumulate = s.accumulate, .clip_norm = s.clip_norm, .seed = 9,
                         .loss_scale = {.mode = s.scaler, .init_scale = s.init_scale, .growth_interval = 2}, .non_finite = s.non_finite};
  if (is_layerwise) options.layerwise = loss;
  Trainer trainer(loader, *optimizer, Schedule::cosine(0.05, 6, 0), loss_function(loss), options);
  Course course;
  for (int epoch = 0; epoch < 2;) {
    device.reset_peak();
    const std::optional<StepResult> result = trainer.step();
    if (!result) {
      ++epoch;
      continue;
    }
    course.losses.push_back(result->loss);
    course.norms.push_back(result->is_applied ? result->grad_norm : -1);  // without meaning where gradients overflow
    course.correct.push_back(result->correct);
    course.applied.push_back(result->is_applied);
    course.notes.push_back(result->note);
    const Ledger ledger = device.ledger();
    course.gradient_peak = std::max(course.gradient_peak, ledger.peak_per_kind()[std::size_t(MemoryKind::gradient)]);
    course.saved_peak = std::max(course.saved_peak, ledger.peak_per_kind()[std::size_t(MemoryKind::saved)]);
    CHECK(device.live_bytes(MemoryKind::gradient) == 0);
    CHECK(device.live_bytes(MemoryKind::saved) == 0);
    CHECK(tape_size() == 0);
  }
  for (const NamedTensor& t : model->state_dict()) course.parameters.push_back(t.tensor.to_vector<float>());
  for (const NamedTensor& t : optimizer->state_dict().tensors) course.parameters.push_back(t.tensor.to_vector<float>());
  return course;
}

std::vector<std::pair<std::string, CheckpointPolicy>> policies() {
  return {{"none", {}},
          {"block", {.kind = CheckpointKind::block}},
          {"nested", {.kind = CheckpointKind::nested}},
          {"nested 3", {.kind = CheckpointKind::nested, .levels = 3}},
          {"selective", {.kind = CheckpointKind::selective, .keep = {"attention"}}}};
}

std::string text_of(const Setting& s) {
  return concat(s.is_vit ? "vit " : "gpt2 ", s.optimizer, ' ', name_of(s.precision), ' ', name_of(s.policy.kind), ' ', s.policy.levels, " clip ", s.clip_norm,
                " scaler ", name_of(s.scaler));
}

}  // namespace

TEST_CASE("layerwise: weights, state, losses and norms are bitwise those of the ordinary order, for every policy and precision") {
  for (const bool is_vit : {true, false}) {
    for (const Precision precision : {Precision::f32_true, Precision::bf16_mixed, Precision::bf16_true}) {
      for (const auto& [name, policy] : policies()) {
        const Setting setting{.is_vit = is_vit, .optimizer = is_vit ? "adamw" : "momentum", .precision = precision, .policy = policy};
        INFO(text_of(setting));
        const Course ordinary = train(setting, Way::ordinary);
        CHECK(train(setting, Way::layerwise) == ordinary);
        CHECK(train(setting, Way::layerwise_fused) == ordinary);
      }
    }
  }
}

TEST_CASE("layerwise: clipping by the global norm goes together with a fused update, bitwise as in the ordinary order") {
  for (const bool is_vit : {true, false}) {
    for (const auto& [name, policy] : policies()) {
      const Setting setting{.is_vit = is_vit, .optimizer = "adamw", .policy = policy, .clip_norm = 0.05};
      INFO(text_of(setting));
      const Course ordinary = train(setting, Way::ordinary);
      CHECK(train(setting, Way::layerwise_fused) == ordinary);
      CHECK(ordinary.norms[0] > 0.05);
    }
  }
}

TEST_CASE("layerwise: steps that overflow are left out with a fused update as in the ordinary order") {
  for (const bool is_vit : {true, false}) {
    const Setting setting{.is_vit = is_vit, .optimizer = "momentum", .precision = Precision::f16_mixed, .policy = {.kind = CheckpointKind::block},
                          .clip_norm = 0.5, .scaler = ScalerMode::dynamic, .init_scale = 0x1p20, .non_finite = NonFinitePolicy::skip};
    INFO(text_of(setting));
    const Course ordinary = train(setting, Way::ordinary);
    CHECK(std::count(ordinary.applied.begin(), ordinary.applied.end(), false) > 0);
    CHECK(std::count(ordinary.applied.begin(), ordinary.applied.end(), true) > 0);
    const Course fused = train(setting, Way::layerwise_fused);
    CHECK(fused == ordinary);
    CHECK(fused.notes == ordinary.notes);
  }
}

TEST_CASE("layerwise: with a fused update at most one stage's gradients are alive") {
  for (const CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block, CheckpointKind::nested}) {
    for (const double clip : {0.0, 1.0}) {
      const Setting setting{.policy = {.kind = kind}, .clip_norm = clip};
      // A block of width 16: two norms, qkv, projection, fc1, fc2, with biases.
      const std::int64_t block = 4 * (2 * 2 * 16 + 3 * (16 * 16 + 16) + 16 * 16 + 16 + 4 * 16 * 16 + 64 + 4 * 16 * 16 + 16);
      CHECK(train(setting, Way::layerwise_fused).gradient_peak <= block);
      CHECK(train(setting, Way::ordinary).gradient_peak > 5 * block);
    }
  }
}

TEST_CASE("layerwise: a tied weight's sums over its stages are the one exception, in both orders") {
  const Setting setting{.is_vit = false, .policy = {.kind = CheckpointKind::block}};
  const Course fused = train(setting, Way::layerwise_fused), ordinary = train(setting, Way::ordinary);
  CHECK(fused == ordinary);
  const std::int64_t block = 4 * (2 * 2 * 16 + 3 * (16 * 16 + 16) + 16 * 16 + 16 + 4 * 16 * 16 + 64 + 4 * 16 * 16 + 16), tied = 4 * 11 * 16, position = 4 * 8 * 16;
  CHECK(fused.gradient_peak <= block + 2 * tied + position);
}

TEST_CASE("layerwise: frozen stages, a window of one micro-batch, chunked losses and certificates") {
  for (const bool is_vit : {true, false}) {
    for (const auto& [name, policy] : policies()) {
      for (Setting setting : {Setting{.freeze = {"embed.*", "blocks.0.*", "blocks.2.mlp.*"}}, Setting{.accumulate = 1}, Setting{.chunk_rows = 3},
                              Setting{.certify = true}}) {
        if (!is_vit && !setting.freeze.empty()) setting.freeze = {"embed.position.*", "blocks.0.*"};
        setting.is_vit = is_vit;
        setting.policy = policy;
        INFO(text_of(setting) << " frozen " << setting.freeze.size() << " accumulate " << setting.accumulate << " chunk " << setting.chunk_rows);
        const Course ordinary = train(setting, Way::ordinary);
        CHECK(train(setting, Way::layerwise) == ordinary);
        CHECK(train(setting, Way::layerwise_fused) == ordinary);
      }
    }
  }
}

TEST_CASE("layerwise: what is infinite is named and nothing is changed, as in the ordinary order") {
  for (const Way way : {Way::ordinary, Way::layerwise, Way::layerwise_fused}) {
    Setting setting{.precision = Precision::f16_mixed, .policy = {.kind = CheckpointKind::nested}, .scaler = ScalerMode::fixed, .init_scale = 0x1p40};
    CHECK_THROWS_AS(train(setting, way), NonFinite);
    setting.non_finite = NonFinitePolicy::skip;
    setting.scaler = ScalerMode::fixed;
    const Course skipped = train(setting, way);
    CHECK(std::count(skipped.applied.begin(), skipped.applied.end(), true) == 0);
  }
}

TEST_CASE("layerwise: a loader that does not hold the window's batches is refused") {
  const auto model = std::make_shared<Vit>(VitConfig{.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 2, .num_heads = 2, .num_classes = 5});
  const auto loss = std::make_shared<const ModelLoss>(model, ModelLossOptions{});
  Loader loader(std::make_shared<FixtureSamples>(true, 14), {.batch = 2, .num_held = 2, .num_slots = 4});
  Sgd optimizer(make_groups(model->named_parameters(), 0));
  Trainer trainer(loader, optimizer, Schedule::constant(0.1), loss_function(loss), {.layerwise = loss, .accumulate = 3});
  CHECK_THROWS_WITH(trainer.step(), Catch::Contains("must hold the window's 3 batches, it holds 2"));
}
