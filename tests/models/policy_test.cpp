// What checkpoint policies may and may not change: memory, never a bit.
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/parallel.h>
#include <refrain/core/view.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>

#include <functional>
#include <memory>
#include <random>

using namespace refrain;

namespace {

// A model with one batch.
struct Subject {
  std::shared_ptr<ChainModel> model;
  Tensor input, targets;
};

VitConfig vit_settings() {
  return {.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 6, .num_heads = 2, .mlp_ratio = 4,
          .num_classes = 5};
}

Gpt2Config gpt2_settings() { return {.vocabulary = 11, .context = 8, .width = 16, .depth = 5, .num_heads = 2}; }

template <class Model, class Config>
std::shared_ptr<Model> built(const Config& config) {
  auto model = std::make_shared<Model>(config);
  for (const NamedTensor& t : model->named_parameters()) copy_values(t.tensor, fixture::parameter(t.name, t.tensor.shape()));
  return model;
}

Subject vit_with_dropout() {
  VitConfig config = vit_settings();
  config.dropout = 0.1;
  config.attention_dropout = 0.2;
  config.stochastic_depth = 0.3;
  return {built<Vit>(config), fixture::values("images", {3, 2, 8, 8}), fixture::integers("labels", {3}, 5)};
}

Subject gpt2_with_dropout() {
  return {built<Gpt2>(gpt2_settings()), fixture::integers("tokens", {3, 7}, 11), fixture::integers("targets", {3, 7}, 11)};
}

using Forward = std::function<Tensor(const Subject&)>;
using Values = std::vector<std::vector<float>>;

Forward under(const CheckpointPolicy& policy) {
  return [policy](const Subject& s) { return (*s.model)(s.input, policy); };
}

// Loss and every gradient, always with the same random numbers.
Values loss_and_gradients(const Subject& s, const Forward& forward) {
  seed_random(11);
  set_random_position(4, 2);
  const Tensor loss = cross_entropy(forward(s), s.targets, {});
  Values values{loss.to_vector<float>()};
  backward(loss);
  for (const Tensor& t : s.model->parameters()) {
    values.push_back(grad_of(t).to_vector<float>());
    clear_grad(t);
  }
  return values;
}

// Splits stages begin … end at random into regions, regions in regions, and bare stages.
Tensor run_partition(const Subject& s, std::shared_ptr<std::mt19937> random, std::size_t begin, std::size_t end, Tensor hidden) {
  const auto draw = [&](std::size_t below) { return std::size_t((*random)() % below); };
  const std::vector<std::vector<std::string>> keeps{
      {}, {"matmul"}, {"attention"}, {"matmul", "attention"}, {"dropout", "layer_norm"}, {"gelu", "add"}};
  while (begin < end) {
    const std::size_t length = 1 + draw(end - begin);
    if (draw(3) == 0) {
      const StageScope stage_scope{std::uint32_t(begin)};
      const ModuleScope module_scope(s.model->stages()[begin]->name());
      hidden = s.model->stages()[begin]->forward(hidden, {});
      ++begin;
      continue;
    }
    // Each region has its own generator state, so that its replay splits as its first run did.
    const std::mt19937 inner(std::uint32_t(draw(1u << 30)));
    const auto region = [s, inner, begin, length](const Tensor& h) {
      return run_partition(s, std::make_shared<std::mt19937>(inner), begin, begin + length, h);
    };
    hidden = checkpoint({.keep = keeps[draw(keeps.size())]}, region, hidden);
    begin += length;
  }
  return hidden;
}

std::int64_t saved_after_forward(const Device& device, const VitConfig& config, const CheckpointPolicy& policy) {
  const CreationScope scope({.device = device});
  const Vit model(config);
  const Tensor images = zeros({3, 2, 8, 8}, DType::f32, device);
  const Tensor logits = model(images, policy);
  return device.live_bytes(MemoryKind::saved);
}

}  // namespace

TEST_CASE("policy: loss and gradients with dropout are bitwise equal under every policy", "[policy]") {
  for (const Subject& s : {vit_with_dropout(), gpt2_with_dropout()}) {
    const Values plain = loss_and_gradients(s, under({}));
    CHECK(loss_and_gradients(s, under({})) == plain);
    CHECK(loss_and_gradients(s, under({.kind = CheckpointKind::block})) == plain);
    CHECK(loss_and_gradients(s, under({.kind = CheckpointKind::block, .certify = true})) == plain);
    for (const int levels : {1, 2, 3}) CHECK(loss_and_gradients(s, under({.kind = CheckpointKind::nested, .levels = levels})) == plain);
    for (const std::vector<std::string>& keep :
         std::vector<std::vector<std::string>>{{"matmul"}, {"attention"}, {"matmul", "attention"}, {"gelu"}}) {
      CHECK(loss_and_gradients(s, under({.kind = CheckpointKind::selective, .keep = keep})) == plain);
    }
  }
}

TEST_CASE("policy: 200 random partitions and keep-lists change no bit", "[policy]") {
  for (const Subject& s : {vit_with_dropout(), gpt2_with_dropout()}) {
    const Values plain = loss_and_gradients(s, under({}));
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
      INFO("partition " << seed);
      const Forward forward = [seed](const Subject& subject) {
        return run_partition(subject, std::make_shared<std::mt19937>(seed), 0, subject.model->stages().size(), subject.input);
      };
      REQUIRE(loss_and_gradients(s, forward) == plain);
    }
  }
}

TEST_CASE("policy: the number of threads changes no bit", "[policy]") {
  const int threads = num_threads();
  for (const Subject& s : {vit_with_dropout(), gpt2_with_dropout()}) {
    set_num_threads(1);
    const Values plain = loss_and_gradients(s, under({}));
    for (const int count : {2, 4}) {
      set_num_threads(count);
      CHECK(loss_and_gradients(s, under({})) == plain);
      CHECK(loss_and_gradients(s, under({.kind = CheckpointKind::nested, .levels = 2})) == plain);
    }
  }
  set_num_threads(threads);
}

TEST_CASE("policy: micro-batches draw the random numbers of their samples", "[policy]") {
  // The same rows, alone and inside the whole batch, meet the same dropout.
  const Subject s = gpt2_with_dropout();
  seed_random(11);
  set_random_position(4, 0);
  const auto whole = (*s.model)(s.input).to_vector<float>();
  set_random_position(4, 1);
  const auto part = (*s.model)(contiguous_values(view::slice(s.input, 0, 1, 3))).to_vector<float>();
  CHECK(part == std::vector<float>(whole.begin() + long(whole.size() / 3), whole.end()));
}

TEST_CASE("policy: without checkpoints a block keeps 10 units of tokens × width", "[policy]") {
  for (const Device& device : {Device::new_cpu(), Device::plan()}) {
    VitConfig config = vit_settings();
    const std::int64_t tokens = 3 * 5;
    const std::int64_t shallow = saved_after_forward(device, config, {});
    config.depth += 1;
    const std::int64_t deep = saved_after_forward(device, config, {});
    // Mean and rstd of two norms, and a log-sum-exp a head, come on top.
    CHECK(deep - shallow == 4 * (10 * tokens * config.width + 4 * tokens + config.num_heads * tokens));
  }
}

TEST_CASE("policy: a checkpoint per block keeps one boundary a block", "[policy]") {
  for (const Device& device : {Device::new_cpu(), Device::plan()}) {
    VitConfig config = vit_settings();
    const CheckpointPolicy policy{.kind = CheckpointKind::block};
    const std::int64_t shallow = saved_after_forward(device, config, policy);
    config.depth += 1;
    CHECK(saved_after_forward(device, config, policy) - shallow == 4 * 3 * 5 * config.width);
  }
}

TEST_CASE("policy: saved activations peak at the boundaries plus one block's own", "[policy]") {
  const Device device = Device::new_cpu();
  const CreationScope scope({.device = device});
  const VitConfig config = vit_settings();
  const Vit model(config);
  const Tensor images = zeros({3, 2, 8, 8}, DType::f32, device), labels = zeros({3}, DType::i64, device);
  const std::int64_t tokens = 3 * 5, unit = 4 * tokens * config.width;
  device.reset_peak();
  backward(cross_entropy(model(images, {.kind = CheckpointKind::block}), labels, {}));
  const std::int64_t peak = device.ledger().peak_per_kind()[std::size_t(MemoryKind::saved)];
  const std::int64_t own = 10 * unit + 4 * (4 * tokens + config.num_heads * tokens);
  // The embedding keeps nothing of its own but the images; the head keeps a row per sample.
  const std::int64_t head = 4 * 3 * (config.width + 2 + config.num_classes + 2) + 8 * 3;
  CHECK(peak <= (config.depth + 1) * unit + own + head + images.bytes());
  CHECK(peak >= config.depth * unit);
}

TEST_CASE("policy: the plan forecasts the memory of training steps to the byte", "[policy]") {
  using MakeModel = std::shared_ptr<ChainModel> (*)();
  const MakeModel make_vit = []() -> std::shared_ptr<ChainModel> {
    VitConfig config = vit_settings();
    config.dropout = 0.1;
    return std::make_shared<Vit>(config);
  };
  const MakeModel make_gpt2 = []() -> std::shared_ptr<ChainModel> { return std::make_shared<Gpt2>(gpt2_settings()); };
  for (const bool is_vit : {true, false}) {
    for (const CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block, CheckpointKind::nested, CheckpointKind::selective}) {
      std::vector<std::vector<std::int64_t>> measured;
      for (const Device& device : {Device::new_cpu(), Device::plan()}) {
        const CreationScope scope({.device = device});
        const auto model = is_vit ? make_vit() : make_gpt2();
        const Tensor input = is_vit ? zeros({3, 2, 8, 8}, DType::f32, device) : zeros({3, 7}, DType::i64, device);
        const Tensor targets = zeros(is_vit ? Shape{3} : Shape{3, 7}, DType::i64, device);
        for (int step = 0; step < 2; ++step) {
          backward(cross_entropy((*model)(input, {.kind = kind, .keep = {"attention"}}), targets, {}));
          for (const Tensor& t : model->parameters()) clear_grad(t);
        }
        measured.push_back({device.peak_bytes(), device.reserved_bytes(), device.live_bytes(), device.live_count()});
      }
      INFO(name_of(kind) << " of " << (is_vit ? "vit" : "gpt2"));
      CHECK(measured[0] == measured[1]);
    }
  }
}
