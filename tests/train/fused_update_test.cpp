#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>
#include <refrain/optim/all.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/toy.h>

#include <limits>
#include <memory>

using namespace refrain;
using refrain::testing::ListSamples;
using refrain::testing::Toy;

namespace {

struct Course {
  std::vector<std::vector<float>> parameters;
  std::vector<double> norms;
  std::int64_t gradient_peak = 0, num_lost = 0;
  friend bool operator==(const Course& a, const Course& b) {
    return a.parameters == b.parameters && a.norms == b.norms && a.num_lost == b.num_lost;
  }
};

struct Setting {
  bool is_vit;
  std::string optimizer;
  Precision precision;
  CheckpointKind checkpoint;
  int micro_batches;
};

std::unique_ptr<Optimizer> optimizer_of(const Setting& s, const Module& model) {
  std::vector<ParameterGroup> groups = make_groups(model.named_parameters(), 0.1);
  const UpdateOptions update{.rounding = is_16_bit(parameter_dtype(s.precision)) ? Rounding::stochastic : Rounding::nearest};
  if (s.optimizer == "adamw") return std::make_unique<AdamW>(std::move(groups), AdamOptions{}, update);
  return std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = s.optimizer == "momentum" ? 0.9 : 0}, update);
}

// Three steps; the gradients' peak is that of the last.
Course train(const Setting& s, bool is_fused) {
  const Device device = Device::new_cpu();
  const PrecisionScope precision(s.precision);
  const CreationScope scope({.device = device, .seed = 3});
  std::shared_ptr<ChainModel> model;
  if (s.is_vit)
    model = std::make_shared<Vit>(VitConfig{.image_height = 8,
                                            .image_width = 8,
                                            .channels = 2,
                                            .patch = 4,
                                            .width = 16,
                                            .depth = 4,
                                            .num_heads = 2,
                                            .num_classes = 5,
                                            .dropout = 0.1});
  else model = std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 11, .context = 8, .width = 16, .depth = 3, .num_heads = 2});
  const auto optimizer = optimizer_of(s, *model);
  Course course;
  for (int step = 0; step < 3; ++step) {
    device.reset_peak();
    for (int i = 0; i < s.micro_batches; ++i) {
      seed_random(1);
      set_random_position(std::uint32_t(step), 3 * i);
      const std::string name = concat("batch ", step, ' ', i);
      const auto here = [&](const Tensor& t) {
        const Tensor copy = empty(t.shape(), t.dtype(), device);
        copy_values(copy, t);
        return copy;
      };
      const Tensor input = here(s.is_vit ? fixture::values(name, {3, 2, 8, 8}) : fixture::integers(name, {3, 7}, 11));
      const Tensor targets = here(s.is_vit ? fixture::integers(name, {3}, 5) : fixture::integers(name + "t", {3, 7}, 11));
      const Tensor loss = cross_entropy((*model)(input, {.kind = s.checkpoint}), targets, {});
      if (!is_fused || i + 1 < s.micro_batches) {
        backward(loss, {.is_last = i + 1 == s.micro_batches});
        continue;
      }
      FusedUpdate update(*optimizer, 0.01, 0.5);
      backward(loss, update.options());
      course.norms.push_back(update.finish());
      for (const Tensor& t : model->parameters()) CHECK(!grad_of(t).defined());
    }
    if (!is_fused) {
      course.norms.push_back(global_grad_norm(optimizer->parameters()) * 0.5);
      optimizer->step(0.01, 0.5);
      optimizer->zero_grad();
    }
    course.num_lost += optimizer->num_lost_updates();
  }
  course.gradient_peak = device.ledger().peak_per_kind()[std::size_t(MemoryKind::gradient)];
  for (const Tensor& t : model->parameters()) course.parameters.push_back(t.to_vector<float>());
  for (const NamedTensor& t : optimizer->state_dict().tensors) course.parameters.push_back(t.tensor.to_vector<float>());
  return course;
}

}  // namespace

TEST_CASE("fused update: weights, optimizer state, norms and lost updates are bitwise those of an update after backward") {
  for (const bool is_vit : {true, false}) {
    for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
      for (const Precision precision : {Precision::f32_true, Precision::bf16_mixed, Precision::bf16_true}) {
        for (const CheckpointKind checkpoint : {CheckpointKind::none, CheckpointKind::block, CheckpointKind::nested}) {
          for (const int micro_batches : {1, 3}) {
            const Setting setting{is_vit, optimizer, precision, checkpoint, micro_batches};
            INFO((is_vit ? "vit " : "gpt2 ") << optimizer << ' ' << name_of(precision) << ' ' << name_of(checkpoint) << ' '
                                             << micro_batches);
            CHECK(train(setting, true) == train(setting, false));
          }
        }
      }
    }
  }
}

TEST_CASE("fused update: gradients take the bytes of a few parameters, not of all") {
  const Setting setting{true, "adamw", Precision::f32_true, CheckpointKind::block, 1};
  const std::int64_t all = train(setting, false).gradient_peak, few = train(setting, true).gradient_peak;
  CHECK(few * 5 < all);
  // The largest gradient alone, fc1's weight, and its bias.
  CHECK(few <= 4 * (64 * 16 + 64));
}

TEST_CASE("fused update: a weight that several stages read waits for all of them") {
  // GPT-2's token weight is read by the head first and by the embedding last; its gradient is final at the very end.
  const Setting setting{false, "sgd", Precision::f32_true, CheckpointKind::none, 1};
  CHECK(train(setting, true) == train(setting, false));
}

TEST_CASE("fused update: parameters that are views of one buffer are told apart") {
  const auto train = [](bool is_fused) {
    const Tensor buffer = zeros({5}, DType::f32);
    const Tensor a = view::slice(buffer, 0, 0, 2), b = view::slice(buffer, 0, 2, 5);
    set_requires_grad(a);
    set_requires_grad(b);
    Sgd optimizer({{.parameters = {a, b}, .names = {"a", "b"}}});
    const Tensor loss = sum(a * 2.0) + sum(b * 3.0);
    if (is_fused) {
      FusedUpdate update(optimizer, 1);
      backward(loss, update.options());
      update.finish();
    } else {
      backward(loss);
      optimizer.step(1);
    }
    return buffer.to_vector<float>();
  };
  CHECK(train(true) == std::vector<float>{-2, -2, -3, -3, -3});
  CHECK(train(true) == train(false));
}

TEST_CASE("fused update: what needs all gradients first is refused with the reason") {
  const auto samples = std::make_shared<ListSamples>(std::vector<float>{1});
  const auto with = [&](TrainerOptions options) {
    options.fused_update = true;
    Toy(samples, {.batch = 1}, Schedule::constant(1), options);
  };
  TrainerOptions clip, scale, skip;
  clip.clip_norm = 1;
  scale.loss_scale = {.mode = ScalerMode::dynamic};
  skip.non_finite = NonFinitePolicy::skip;
  CHECK_THROWS_WITH(with(clip), Catch::Contains("clipping by the global norm needs all gradients"));
  CHECK_THROWS_WITH(with(scale), Catch::Contains("dynamic loss scale needs all gradients"));
  CHECK_THROWS_WITH(with(skip), Catch::Contains("skipping steps that are not finite needs all gradients"));
  with({});
}

TEST_CASE("fused update: each gradient is checked before its own update, a loss before any") {
  const float infinity = std::numeric_limits<float>::infinity();
  TrainerOptions options;
  options.fused_update = true;
  Toy loss(std::make_shared<ListSamples>(std::vector<float>{-1, infinity}), {.batch = 1, .shuffle = false}, Schedule::constant(1), options);
  loss.trainer.step();
  CHECK(loss.w.item() == 1);
  CHECK_THROWS_WITH(loss.trainer.step(), Catch::Contains("the loss of step 2 is inf; first: mul"));
  CHECK(loss.w.item() == 1);
  CHECK(loss.optimizer.num_steps() == 1);

  // A static loss scale that overflows the gradient, not the loss.
  options.loss_scale = {.mode = ScalerMode::fixed, .init_scale = 65536};
  Toy gradient(std::make_shared<ListSamples>(std::vector<float>{1e38f}), {.batch = 1}, Schedule::constant(1), options);
  CHECK_THROWS_WITH(gradient.trainer.step(), Catch::Contains("step 1: the gradient of parameter 'w' is not finite, completed by mul"));
  CHECK(gradient.w.item() == 0);
  CHECK(!grad_of(gradient.w).defined());
  CHECK(tape_size() == 0);
}
