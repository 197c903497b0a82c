// What the precision modes may and may not change in whole models: memory, as arithmetic says; never a bit between one
// checkpoint policy and another.
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/parallel.h>
#include <refrain/optim/all.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>

#include <array>
#include <cmath>
#include <memory>

using namespace refrain;

namespace {

constexpr std::array kModes = {Precision::f32_true, Precision::f16_mixed, Precision::bf16_mixed, Precision::f16_true, Precision::bf16_true};

VitConfig vit_settings(double dropout = 0) {
  return {.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 6, .num_heads = 2, .mlp_ratio = 4,
          .num_classes = 5, .dropout = dropout, .attention_dropout = dropout, .stochastic_depth = dropout};
}

Gpt2Config gpt2_settings(double dropout = 0) {
  return {.vocabulary = 11, .context = 8, .width = 16, .depth = 5, .num_heads = 2, .dropout = dropout, .attention_dropout = dropout};
}

Tensor on_device(const Tensor& t, const Device& device) {
  const Tensor result = empty(t.shape(), t.dtype(), device);
  if (result.has_bytes()) copy_values(result, t);
  return result;
}

// A model in a mode, with one batch.
struct Subject {
  Precision precision;
  std::shared_ptr<ChainModel> model;
  Tensor input, targets;
};

Subject subject(bool is_vit, Precision precision, const Device& device, double dropout = 0) {
  const PrecisionScope precision_scope(precision);
  const CreationScope scope({.device = device, .seed = 5});
  if (is_vit) {
    return {precision, std::make_shared<Vit>(vit_settings(dropout)), on_device(fixture::values("images", {3, 2, 8, 8}), device),
            on_device(fixture::integers("labels", {3}, 5), device)};
  }
  return {precision, std::make_shared<Gpt2>(gpt2_settings(dropout)), on_device(fixture::integers("tokens", {3, 7}, 11), device),
          on_device(fixture::integers("targets", {3, 7}, 11), device)};
}

Tensor loss_of(const Subject& s, const CheckpointPolicy& policy) {
  const PrecisionScope scope(s.precision);
  return cross_entropy((*s.model)(s.input, policy), s.targets, {});
}

using Bytes = std::vector<std::vector<std::byte>>;

// Loss and every gradient, always with the same random numbers. backward runs outside the mode's scope.
Bytes loss_and_gradients(const Subject& s, const CheckpointPolicy& policy) {
  seed_random(11);
  set_random_position(4, 2);
  const Tensor loss = loss_of(s, policy);
  const auto bytes_of = [](const Tensor& t) { return std::vector<std::byte>(t.address(), t.address() + t.bytes()); };
  Bytes values{bytes_of(loss)};
  backward(loss);
  for (const Tensor& t : s.model->parameters()) {
    values.push_back(bytes_of(grad_of(t)));
    clear_grad(t);
  }
  return values;
}

struct Usage {
  std::int64_t parameters = 0, gradients = 0, optimizer_state = 0, saved = 0, saved_deeper = 0;
};

// Bytes by kind after one forward, and after backward and AdamW.
Usage usage(Precision precision, const Device& device, int extra_blocks) {
  const PrecisionScope precision_scope(precision);
  const CreationScope scope({.device = device});
  VitConfig config = vit_settings();
  config.depth += extra_blocks;
  Vit model(config);
  AdamW optimizer(make_groups(model.named_parameters(), 0.1));
  const Tensor images = zeros({3, 2, 8, 8}, DType::f32, device), labels = zeros({3}, DType::i64, device);
  Usage result;
  const Tensor loss = cross_entropy(model(images, {}), labels, {});
  result.saved = device.live_bytes(MemoryKind::saved);
  backward(loss);
  result.parameters = device.live_bytes(MemoryKind::parameter);
  result.gradients = device.live_bytes(MemoryKind::gradient);
  result.optimizer_state = device.live_bytes(MemoryKind::optimizer_state);
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
  return result;
}

}  // namespace

TEST_CASE("precision: parameters, gradients, optimizer state and saved activations take what arithmetic says in every mode",
          "[precision]") {
  for (const bool is_plan : {false, true}) {
    const auto device = [&] { return is_plan ? Device::plan() : Device::new_cpu(); };
    const Vit reference(vit_settings());
    std::int64_t num_parameters = 0;
    for (const Tensor& t : reference.parameters()) num_parameters += t.numel();
    for (const Precision precision : kModes) {
      INFO(name_of(precision) << (is_plan ? " planned" : ""));
      const std::int64_t size = std::int64_t(size_of(parameter_dtype(precision))), narrow = std::int64_t(size_of(compute_dtype(precision)));
      const Usage base = usage(precision, device(), 0), deeper = usage(precision, device(), 1);
      CHECK(base.parameters == size * num_parameters);
      CHECK(base.gradients == size * num_parameters);
      CHECK(base.optimizer_state == 2 * size * num_parameters);
      // A block keeps 10 units of tokens × width: x and x_mid as the residual stream is, q, k, v, o and GELU's input (4)
      // as products are. Mean and rstd of two norms and a log-sum-exp a head are f32 in every mode.
      const std::int64_t tokens = 3 * 5, width = 16, heads = 2;
      CHECK(deeper.saved - base.saved == (2 * size + 8 * narrow) * tokens * width + 4 * (4 * tokens + heads * tokens));
    }
  }
}

TEST_CASE("precision: checkpointed gradients are bitwise equal to plain ones in every mode, with dropout and any number of threads",
          "[precision]") {
  const int threads = num_threads();
  for (const bool is_vit : {true, false}) {
    for (const Precision precision : kModes) {
      INFO(name_of(precision) << (is_vit ? " vit" : " gpt2"));
      const Subject s = subject(is_vit, precision, Device::cpu(), 0.2);
      set_num_threads(1);
      const Bytes plain = loss_and_gradients(s, {});
      CHECK(loss_and_gradients(s, {}) == plain);
      for (const int count : {1, 2, 4}) {
        set_num_threads(count);
        CHECK(loss_and_gradients(s, {}) == plain);
        CHECK(loss_and_gradients(s, {.kind = CheckpointKind::block, .certify = true}) == plain);
        CHECK(loss_and_gradients(s, {.kind = CheckpointKind::nested, .levels = 2}) == plain);
        CHECK(loss_and_gradients(s, {.kind = CheckpointKind::selective, .keep = {"matmul", "attention"}}) == plain);
        CHECK(loss_and_gradients(s, {.kind = CheckpointKind::selective, .keep = {"convert", "layer_norm"}}) == plain);
      }
    }
  }
  set_num_threads(threads);
}

TEST_CASE("precision: the plan forecasts the memory of training steps to the byte in every mode", "[precision]") {
  for (const bool is_vit : {true, false}) {
    for (const Precision precision : kModes) {
      for (const CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block}) {
        INFO(name_of(precision) << ' ' << name_of(kind) << (is_vit ? " vit" : " gpt2"));
        std::vector<std::vector<std::int64_t>> measured;
        for (const Device& device : {Device::new_cpu(), Device::plan()}) {
          const Subject s = subject(is_vit, precision, device, 0.1);
          AdamW optimizer(make_groups(s.model->named_parameters(), 0.1), {}, {.rounding = Rounding::stochastic});
          for (int step = 0; step < 2; ++step) {
            backward(loss_of(s, {.kind = kind}));
            optimizer.step(1e-3);
            optimizer.zero_grad();
          }
          measured.push_back({device.peak_bytes(), device.reserved_bytes(), device.live_bytes(), device.live_count()});
        }
        CHECK(measured[0] == measured[1]);
      }
    }
  }
}

// Products of rounded operands: the losses may differ by a few roundings of the values on the way, not by more.
TEST_CASE("precision: losses and gradients of every mode stay near those of f32", "[precision]") {
  for (const bool is_vit : {true, false}) {
    const Subject exact = subject(is_vit, Precision::f32_true, Device::cpu());
    backward(loss_of(exact, {}));
    for (const Precision precision : {Precision::f16_mixed, Precision::bf16_mixed, Precision::f16_true, Precision::bf16_true}) {
      INFO(name_of(precision) << (is_vit ? " vit" : " gpt2"));
      const Subject s = subject(is_vit, precision, Device::cpu());
      const double unit = compute_dtype(precision) == DType::bf16 ? 0x1p-8 : 0x1p-11;
      const Tensor loss = loss_of(s, {});
      CHECK(loss.dtype() == DType::f32);
      CHECK(loss.item() == Approx(loss_of(exact, {}).item()).epsilon(8 * unit));
      backward(loss);
      const auto parameters = s.model->parameters(), expected = exact.model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        CHECK(grad_of(parameters[i]).dtype() == parameter_dtype(precision));
        double difference = 0, size = 0;
        const Tensor got = grad_of(parameters[i]), want = grad_of(expected[i]);
        const auto a = got.to_vector<double>(), b = want.to_vector<double>();
        for (std::size_t k = 0; k < a.size(); ++k) {
          difference += (a[k] - b[k]) * (a[k] - b[k]);
          size += b[k] * b[k];
        }
        CHECK(std::sqrt(difference) <= 16 * unit * std::sqrt(size) + 1e-7);
      }
    }
  }
}
