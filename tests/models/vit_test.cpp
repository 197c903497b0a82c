#include <refrain/models/vit.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/parallel.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/nn/message.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>
#include <set>

using namespace refrain;

namespace {

VitConfig tiny() {
  return {.image_height = 8, .image_width = 12, .channels = 3, .patch = 4, .width = 16, .depth = 3, .num_heads = 2, .mlp_ratio = 2,
          .num_classes = 5};
}

std::int64_t count_parameters(VitConfig config) {
  const CreationScope scope({.device = Device::plan()});
  return Vit(config).num_parameters();
}

VitConfig with_classes(std::string_view name, std::int64_t num_classes) {
  VitConfig config = vit_config(name);
  config.num_classes = num_classes;
  return config;
}

void fill_all(const Module& module) {
  for (const NamedTensor& t : module.named_parameters()) copy_values(t.tensor, fixture::parameter(t.name, t.tensor.shape()));
}

}  // namespace

TEST_CASE("vit: published sizes have their published numbers of parameters", "[vit]") {
  CHECK(count_parameters(vit_config("vit_l_16")) == 304326632);
  CHECK(count_parameters(with_classes("vit_l_16", 10)) == 303311882);
  CHECK(count_parameters(vit_config("vit_b_16")) == 86567656);
  CHECK(count_parameters(vit_config("vit_b_32")) == 88224232);
  CHECK(count_parameters(vit_config("vit_l_32")) == 306535400);
  CHECK(count_parameters(vit_config("vit_h_14")) == 632045800);
  CHECK(count_parameters(vit_config("vit_ti_16")) == 5717416);
  CHECK(count_parameters(vit_config("vit_s_16")) == 22050664);
}

TEST_CASE("vit: state-dict keys are the member names", "[vit]") {
  VitConfig config = tiny();
  config.depth = 1;
  std::vector<std::string> names;
  for (const NamedTensor& t : Vit(config).state_dict()) names.push_back(t.name);
  CHECK(names == std::vector<std::string>{
                     "embed.class_token", "embed.position", "embed.patch.weight", "embed.patch.bias", "blocks.0.norm1.weight",
                     "blocks.0.norm1.bias", "blocks.0.attention.qkv.weight", "blocks.0.attention.qkv.bias",
                     "blocks.0.attention.proj.weight", "blocks.0.attention.proj.bias", "blocks.0.norm2.weight", "blocks.0.norm2.bias",
                     "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1.bias", "blocks.0.mlp.fc2.weight", "blocks.0.mlp.fc2.bias",
                     "head.norm.weight", "head.norm.bias", "head.linear.weight", "head.linear.bias"});
}

TEST_CASE("vit: images of any size, channels and classes give one row of logits each", "[vit]") {
  const CreationScope scope({});
  const Vit model(tiny());
  const Tensor logits = model(fixture::values("images", {2, 3, 8, 12}));
  CHECK(logits.shape() == Shape{2, 5});
  // torchvision's head starts at zero.
  CHECK(logits.to_vector<float>() == std::vector<float>(10, 0));
  CHECK(contains(message_of([&] {
                   model(fixture::values("images", {2, 3, 12, 8}));
                 }),
                 "vit: images must be [B, 3, 8, 12], got [2, 3, 12, 8]"));
  const CreationScope plan({.device = Device::plan()});
  const Vit large(vit_config("vit_l_16"));
  CHECK(large(empty({2, 3, 224, 224}, DType::f32, creation_options().device)).shape() == Shape{2, 1000});
}

TEST_CASE("vit: sizes that do not fit are refused", "[vit]") {
  VitConfig config = tiny();
  config.patch = 5;
  CHECK(contains(message_of([&] { Vit{config}; }), "8 × 12 and patch 5"));
  config = tiny();
  config.num_heads = 3;
  CHECK(contains(message_of([&] { Vit{config}; }), "got 16 and 3"));
  CHECK(contains(message_of([] { vit_config("vit_xl_16"); }), "vit_xl_16"));
}

TEST_CASE("vit: building takes at most 1.01 times the parameters' bytes", "[vit]") {
  for (const Device& device : {Device::new_cpu(), Device::plan()}) {
    const CreationScope scope({.device = device});
    const Vit model(with_classes("vit_ti_16", 10));
    const double own = 4.0 * double(model.num_parameters());
    CHECK(double(device.peak_bytes()) == own);
    CHECK(double(device.reserved_bytes()) <= 1.01 * own);
  }
}

TEST_CASE("vit: initial values are torchvision's distributions", "[vit]") {
  const CreationScope scope({});
  const Vit model(vit_config("vit_ti_16"));
  const auto deviation = [](const Tensor& t) {
    double sum = 0;
    for (const double v : t.to_vector<double>()) sum += v * v;
    return std::sqrt(sum / double(t.numel()));
  };
  const Block& block = *model.blocks[5];
  CHECK(deviation(model.embed->position) == Approx(0.02).epsilon(0.03));
  // Cut at two, not at two standard deviations: no visible narrowing.
  CHECK(deviation(model.embed->patch->weight) == Approx(std::sqrt(1.0 / 768)).epsilon(0.02));
  CHECK(deviation(block.attention->qkv->weight) == Approx(std::sqrt(2.0 / (4 * 192))).epsilon(0.02));
  CHECK(deviation(block.attention->proj->weight) == Approx(std::sqrt(1.0 / (3 * 192))).epsilon(0.02));
  CHECK(deviation(block.mlp->fc1->weight) == Approx(std::sqrt(2.0 / (5 * 192))).epsilon(0.02));
  CHECK(deviation(block.mlp->fc1->bias) == Approx(1e-6).epsilon(0.1));
  CHECK(deviation(block.attention->qkv->bias) == 0);
  CHECK(deviation(model.embed->class_token) == 0);
}

TEST_CASE("vit: stochastic depth rises from none at the first block to its value at the last", "[vit]") {
  VitConfig config = tiny();
  config.stochastic_depth = 0.2;
  const Vit model(config);
  CHECK(model.blocks[0]->stochastic_depth->p() == 0);
  CHECK(model.blocks[1]->stochastic_depth->p() == Approx(0.1));
  CHECK(model.blocks[2]->stochastic_depth->p() == Approx(0.2));
}

TEST_CASE("vit: logits do not depend on the number of threads", "[vit]") {
  const Vit model(tiny());
  fill_all(model);
  const Tensor images = fixture::values("images", {5, 3, 8, 12});
  const int threads = num_threads();
  set_num_threads(1);
  const auto expected = model(images).to_vector<float>();
  CHECK(*std::max_element(expected.begin(), expected.end()) > 0);
  for (const int count : {2, 4}) {
    set_num_threads(count);
    CHECK(model(images).to_vector<float>() == expected);
  }
  set_num_threads(threads);
}

TEST_CASE("vit: frozen parts get no gradient, the others the same as before", "[vit]") {
  const Tensor images = fixture::values("images", {2, 3, 8, 12}), labels = fixture::integers("labels", {2}, 5);
  Vit model(tiny());
  fill_all(model);
  backward(cross_entropy(model(images), labels, {}));
  const auto full = grad_of(model.head->linear->weight).to_vector<float>();
  for (const Tensor& t : model.parameters()) clear_grad(t);
  model.freeze(std::vector<std::string>{"embed.*", "blocks.*"});
  backward(cross_entropy(model(images), labels, {}));
  for (const NamedTensor& t : model.named_parameters()) CHECK(grad_of(t.tensor).defined() == (t.name.substr(0, 5) == "head."));
  CHECK(grad_of(model.head->linear->weight).to_vector<float>() == full);
}

TEST_CASE("vit: with everything but the head frozen, blocks save nothing", "[vit]") {
  const Device device = Device::new_cpu();
  const CreationScope scope({.device = device});
  const VitConfig config = tiny();
  Vit model(config);
  model.freeze(std::vector<std::string>{"embed.*", "blocks.*"});
  const Tensor logits = model(zeros({2, 3, 8, 12}, DType::f32, device));
  // The last hidden state, of which the class tokens are a view, and their mean and rstd; the norm is rebuilt.
  CHECK(device.live_bytes(MemoryKind::saved) <= 4 * 2 * 7 * config.width + 4 * 2 * 2);
  CHECK(device.live_bytes(MemoryKind::saved) > 0);
}

TEST_CASE("vit: every byte of a training step has an owner, by module or as input", "[vit]") {
  const Device device = Device::new_cpu();
  const CreationScope scope({.device = device});
  VitConfig config = tiny();
  config.dropout = 0.1;
  config.stochastic_depth = 0.1;
  const Vit model(config);
  fill_all(model);
  Tensor images, labels;
  {
    const KindScope kind(MemoryKind::input);
    images = from_values(fixture::values("images", {2, 3, 8, 12}).to_vector<float>(), {2, 3, 8, 12}, device);
    labels = from_values(std::vector<std::int64_t>{1, 4}, {2}, device);
  }
  for (const CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block}) {
    device.reset_peak();
    const Tensor logits = model(images, {.kind = kind});
    const ModuleScope loss("loss");
    backward(cross_entropy(logits, labels, {}));
    std::int64_t sum = 0;
    std::set<std::string> modules;
    for (const PeakEntry& entry : device.ledger().entries_at_peak()) {
      sum += entry.bytes;
      modules.insert(entry.module->text);
      INFO(name_of(kind) << ": " << entry.bytes << " bytes of " << name_of(entry.kind));
      // backward() itself owns one number: the gradient of the loss.
      const bool is_loss_gradient = entry.kind == MemoryKind::temporary && entry.bytes == 4;
      CHECK((!entry.module->text.empty() || entry.kind == MemoryKind::input || is_loss_gradient));
    }
    CHECK(sum == device.peak_bytes());
    CHECK(modules.count("blocks.1.attention.qkv") == 1);
    for (const Tensor& t : model.parameters()) clear_grad(t);
  }
}
