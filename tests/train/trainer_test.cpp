#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/nn/linear.h>
#include <refrain/nn/norm.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/toy.h>

#include <cmath>
#include <limits>

using namespace refrain;
using refrain::testing::ListSamples;
using refrain::testing::Toy;

namespace {

// Gradients -1, -2, …, -10, in order, a sample a micro-batch.
std::shared_ptr<const Samples> ten_numbers() {
  std::vector<float> values;
  for (int i = 1; i <= 10; ++i) values.push_back(float(-i));
  return std::make_shared<ListSamples>(values);
}

LoaderOptions in_order() { return {.batch = 1, .shuffle = false}; }

}  // namespace

TEST_CASE("trainer: a short last window counts by its own size: 10 micro-batches, accumulate 4 give w = 18.5 after 3 steps") {
  Toy toy(ten_numbers(), in_order(), Schedule::constant(1), {.accumulate = 4});
  CHECK(toy.trainer.steps_per_epoch() == 3);
  std::vector<double> losses;
  while (const auto step = toy.trainer.step()) losses.push_back(step->loss);
  CHECK(losses.size() == 3);
  CHECK(toy.w.item() == 18.5);
  // The next epoch starts with an empty window.
  const auto first = toy.trainer.step();
  CHECK(first->samples == 4);
  CHECK(toy.w.item() == 21);
}

TEST_CASE("trainer: accumulating more than an epoch holds still makes one step, 0 is refused") {
  Toy toy(ten_numbers(), in_order(), Schedule::constant(1), {.accumulate = 16});
  CHECK(toy.trainer.steps_per_epoch() == 1);
  CHECK(toy.trainer.step()->samples == 10);
  CHECK(!toy.trainer.step());
  CHECK(toy.w.item() == 5.5);
  CHECK_THROWS_AS(Toy(ten_numbers(), in_order(), Schedule::constant(1), {.accumulate = 0}), InvalidArgument);
}

TEST_CASE("trainer: every token weighs the same, though micro-batches hold different numbers: losses 1, 2, 3 and 10 mean 4") {
  // The first sample holds three tokens with losses 1 + 2 + 3, the second one with 10; the loss is w times that, w = 1.
  Toy toy(std::make_shared<ListSamples>(std::vector<float>{6, 10}, std::vector<std::int64_t>{3, 1}), in_order(), Schedule::constant(1),
          {.accumulate = 2});
  fill_values(toy.w, 1);
  const auto step = toy.trainer.step();
  CHECK(step->targets == 4);
  CHECK(step->loss == 4);
  CHECK(step->grad_norm == 4);
  CHECK(toy.w.item() == 1 - 4);
}

TEST_CASE(
    "trainer: the learning rate follows optimizer steps, not micro-batches: cosine over 10 steps is at half after 5 of 20 micro-batches by "
    "4") {
  std::vector<float> values(40, -1);
  Toy toy(std::make_shared<ListSamples>(values), in_order(), Schedule::cosine(0.1, 10), {.accumulate = 4});
  for (int i = 0; i < 5; ++i) toy.trainer.step();
  CHECK(toy.trainer.num_steps() == 5);
  CHECK(toy.trainer.step()->lr == Approx(0.05).epsilon(1e-12));
}

TEST_CASE("trainer: the same samples in any micro-batches give the same step") {
  std::vector<float> results;
  for (const auto& [batch, accumulate] : {std::pair(8, 1), std::pair(4, 2), std::pair(2, 4), std::pair(1, 8), std::pair(3, 3)}) {
    Toy toy(std::make_shared<ListSamples>(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), {.batch = batch, .seed = 3}, Schedule::constant(1),
            {.accumulate = accumulate});
    const auto step = toy.trainer.step();
    CHECK(step->samples == 8);
    CHECK(step->grad_norm == 4.5);
    CHECK(toy.w.item() == -4.5);
  }
}

TEST_CASE("trainer: clipping scales the step, the reported norm is the one before") {
  Toy toy(ten_numbers(), in_order(), Schedule::constant(1), {.accumulate = 10, .clip_norm = 1});
  CHECK(toy.trainer.step()->grad_norm == 5.5);
  CHECK(toy.w.item() == Approx(1));
}

TEST_CASE("trainer: a loss or gradient that is not finite ends training before the weights change, and leaves nothing behind") {
  const float infinity = std::numeric_limits<float>::infinity();
  Toy toy(std::make_shared<ListSamples>(std::vector<float>{-1, infinity, -3}), in_order(), Schedule::constant(1), {});
  toy.trainer.step();
  CHECK_THROWS_WITH(toy.trainer.step(), Catch::Contains("step 2"));
  CHECK(toy.w.item() == 1);
  CHECK(tape_size() == 0);
  // The window is there again; the one behind it is not spoilt by it.
  CHECK_THROWS_WITH(toy.trainer.step(), Catch::Contains("step 2"));
  toy.loader.set_state({0, 2});
  CHECK(toy.trainer.step()->grad_norm == 3);
  CHECK(toy.w.item() == 4);
}

TEST_CASE("trainer: 1,000 steps leave tape and memory exactly where step 10 had them") {
  Toy toy(ten_numbers(), {.batch = 2}, Schedule::constant(1e-3), {.accumulate = 2});
  const Device device = Device::cpu();
  std::int64_t live = 0, count = 0, records = 0, reserved = 0, steps = 0;
  double total_loss = 0;
  while (steps < 1000) {
    const auto step = toy.trainer.step();
    if (!step) continue;
    total_loss += step->loss;
    if (++steps == 10) live = device.live_bytes(), count = device.live_count(), records = tape_size(), reserved = device.reserved_bytes();
  }
  CHECK(std::isfinite(total_loss));
  CHECK(device.live_bytes() == live);
  CHECK(device.live_count() == count);
  CHECK(device.reserved_bytes() == reserved);
  CHECK(tape_size() == records);
  CHECK(records == 0);
}

namespace {

// Images of 2 channels and 1 x 1 pixels with labels 0 and 1, and a net that normalises them one way or the other.
class Pixels : public Samples {
 public:
  explicit Pixels(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return {2, 1, 1}; }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return 2; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    float* values = reinterpret_cast<float*>(input);
    values[0] = float(index % 5);
    values[1] = float(index % 3);
    *target = index % 2;
  }

 private:
  std::int64_t size_;
};

template <class Norm, class NormArgument>
struct NormNet : Module {
  explicit NormNet(const NormArgument& argument) : norm(add<Norm>("norm", argument)), head(add<Linear>("head", 2, 2)) {}
  Tensor operator()(const Tensor& x) const {
    if constexpr (std::is_same_v<Norm, LayerNorm>) return (*head)((*norm)(reshape(x, {x.dim(0), 2})));
    else return (*head)(reshape((*norm)(x), {x.dim(0), 2}));
  }
  std::shared_ptr<Norm> norm;
  std::shared_ptr<Linear> head;
};

// Losses of one epoch of 65 samples by 64.
template <class Net>
std::vector<double> losses_of_an_epoch(const std::shared_ptr<Net>& net) {
  Loader loader(std::make_shared<Pixels>(65), {.batch = 64});
  Sgd optimizer(make_groups(net->named_parameters(), 0));
  Trainer trainer(loader, optimizer, Schedule::constant(0.1), [&](const Batch& batch, double scale) {
    return BatchLoss{cross_entropy((*net)(batch.input), batch.target, {.reduction = Reduction::sum, .scale = scale})};
  });
  std::vector<double> losses;
  while (const auto step = trainer.step()) losses.push_back(step->loss);
  return losses;
}

}  // namespace

TEST_CASE("trainer: a last batch of one sample trains a layer norm net, and is a clear error where batch norm has one value a channel") {
  const auto losses = losses_of_an_epoch(std::make_shared<NormNet<LayerNorm, std::int64_t>>(2));
  REQUIRE(losses.size() == 2);
  CHECK(std::isfinite(losses[1]));
  CHECK_THROWS_WITH(losses_of_an_epoch(std::make_shared<NormNet<BatchNorm2d, std::int64_t>>(2)),
                    Catch::Contains("more than one value per channel"));
}
