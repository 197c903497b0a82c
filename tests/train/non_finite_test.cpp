#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/toy.h>

#include <cmath>
#include <limits>

using namespace refrain;
using refrain::testing::ListSamples;
using refrain::testing::Toy;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Finite, but not times a loss scale above 4.
constexpr float kHuge = 1e38f;

// A micro-batch a sample, in order.
std::unique_ptr<Toy> toy(std::vector<float> gradients, const TrainerOptions& options, const Schedule& schedule = Schedule::constant(1)) {
  return std::make_unique<Toy>(std::make_shared<ListSamples>(std::move(gradients)), LoaderOptions{.batch = 1, .shuffle = false}, schedule,
                               options);
}

TrainerOptions scaled(NonFinitePolicy policy = NonFinitePolicy::skip) {
  TrainerOptions options;
  options.loss_scale = {.mode = ScalerMode::dynamic};
  options.non_finite = policy;
  return options;
}

}  // namespace

TEST_CASE("trainer: a skipped step changes no weight and no schedule position: overflow, ok, ok, overflow, ok make 3 steps") {
  const auto t = toy({kHuge, -1, -1, kHuge, -1}, scaled(), Schedule::cosine(1, 4));
  std::vector<bool> applied;
  std::vector<double> scales;
  for (int i = 0; i < 5; ++i) {
    const float before = float(t->w.item());
    const auto step = t->trainer.step();
    applied.push_back(step->is_applied);
    scales.push_back(step->loss_scale);
    CHECK((step->is_applied || float(t->w.item()) == before));
    CHECK(step->note.empty() == step->is_applied);
  }
  CHECK(applied == std::vector<bool>{false, true, true, false, true});
  CHECK(scales == std::vector<double>{65536, 32768, 32768, 32768, 16384});
  CHECK(t->trainer.num_steps() == 3);
  CHECK(t->optimizer.num_steps() == 3);
  const double third = 0.5 * (1 + std::cos(std::acos(-1.0) * 0.5));
  CHECK(t->w.item() == Approx(1 + 0.5 * (1 + std::cos(std::acos(-1.0) * 0.25)) + third));
  CHECK(!t->trainer.step());
  CHECK(t->trainer.step()->lr == Approx(0.14644660940672627).epsilon(1e-12));
}

TEST_CASE("trainer: a skip is told with the parameter and the new loss scale") {
  const auto t = toy({kHuge}, scaled());
  CHECK(t->trainer.step()->note == "step 1: the gradient of parameter 'w' is not finite: skipped, loss scale now 32768");
}

TEST_CASE("trainer: gradients are unscaled before they are measured and clipped") {
  TrainerOptions options = scaled();
  options.loss_scale.init_scale = 1024;
  options.clip_norm = 1;
  const auto t = toy({5}, options);
  CHECK(t->trainer.step()->grad_norm == 5);
  CHECK(t->w.item() == -1);
}

TEST_CASE("trainer: a power of two as loss scale leaves every bit of the weights as it is") {
  std::vector<float> gradients;
  for (int i = 1; i < 50; ++i) gradients.push_back(float(std::sin(i)));
  const auto plain = toy(gradients, {}, Schedule::cosine(0.1, 49)), with_scale = toy(gradients, scaled(), Schedule::cosine(0.1, 49));
  while (plain->trainer.step()) REQUIRE(with_scale->trainer.step()->is_applied);
  CHECK(plain->w.item() == with_scale->w.item());
}

TEST_CASE("trainer: stop names the first op with its input ranges, changes nothing and puts the loader back") {
  const auto t = toy({1, kNan, 2}, {});
  t->trainer.step();
  const double before = t->w.item();
  const LoaderState start = t->loader.state();
  std::string message;
  try {
    t->trainer.step();
  } catch (const NonFinite& error) {
    message = error.what();
  }
  CHECK(message.find("the loss of step 2 is nan; first: mul in module '', forward: output f32 [1]") == 0);
  CHECK(message.find("from input 0 f32 [1] 1 not finite, input 1 f32 [] in [-1, -1]") != std::string::npos);
  CHECK(t->w.item() == before);
  CHECK(t->trainer.num_steps() == 1);
  CHECK(t->loader.state().position == start.position);
  CHECK(!grad_of(t->w).defined());
}

TEST_CASE("trainer: stop under a dynamic scale still lets the scale find its value, and stops at the lowest") {
  TrainerOptions options = scaled(NonFinitePolicy::stop);
  options.loss_scale.init_scale = 65536;
  options.loss_scale.min_scale = 16384;
  const auto t = toy({kHuge, kHuge, kHuge}, options);
  CHECK(!t->trainer.step()->is_applied);
  CHECK(!t->trainer.step()->is_applied);
  CHECK_THROWS_AS(t->trainer.step(), NonFinite);
  CHECK(t->w.item() == 0);
}

TEST_CASE("trainer: a NaN loss is a counted skip, and 20 in a row at the lowest scale stop the run") {
  std::vector<float> gradients(30, kNan);
  gradients[5] = 1;  // the count starts again
  TrainerOptions options;
  options.non_finite = NonFinitePolicy::skip;
  const auto t = toy(gradients, options);
  for (int i = 0; i < 25; ++i) CHECK(t->trainer.step()->is_applied == (i == 5));
  CHECK(t->w.item() == -1);
  std::string message;
  try {
    t->trainer.step();
  } catch (const NonFinite& error) {
    message = error.what();
  }
  CHECK(message.find("the 20th skip in a row at loss scale 1; first: mul") != std::string::npos);
}

TEST_CASE("trainer: skipping halves a dynamic scale to its lowest, then counts to 20") {
  TrainerOptions options = scaled();
  options.loss_scale.min_scale = 16384;
  const auto t = toy(std::vector<float>(30, kNan), options);
  int skips = 0;
  try {
    for (; skips < 100; ++skips) {
      const auto step = t->trainer.step();
      CHECK(!step->is_applied);
    }
  } catch (const NonFinite&) {
  }
  CHECK(skips == 2 + 19);
}

TEST_CASE("trainer: a stop after skips goes back to where they began, loss scale and loader too") {
  TrainerOptions options = scaled();
  options.loss_scale.min_scale = 16384;
  std::vector<float> gradients(30, kNan);
  gradients[0] = 1;
  const auto t = toy(gradients, options);
  const auto run_on = [&] {
    for (int i = 0; i < 25; ++i) t->trainer.step();
  };
  CHECK_THROWS_AS(run_on(), NonFinite);
  CHECK(t->trainer.scaler().scale() == 65536);
  CHECK(t->trainer.scaler().num_skipped() == 0);
  CHECK(t->loader.state().position == 1);
}

TEST_CASE("trainer: an update that makes a parameter infinite stops, whatever the policy but report") {
  for (const NonFinitePolicy policy : {NonFinitePolicy::stop, NonFinitePolicy::skip, NonFinitePolicy::report}) {
    for (const bool is_fused : {false, true}) {
      if (is_fused && policy == NonFinitePolicy::skip) continue;
      TrainerOptions options;
      options.non_finite = policy;
      options.fused_update = is_fused;
      const auto t = toy({1e30f}, options, Schedule::constant(1e20));
      if (policy == NonFinitePolicy::report) {
        CHECK(t->trainer.step()->note.find("the update of step 1 made parameter 'w' infinite or NaN") == 0);
      } else {
        CHECK_THROWS_WITH(t->trainer.step(),
                          Catch::Contains("the update of step 1 made parameter 'w' infinite or NaN, with finite gradients"));
        CHECK(t->trainer.num_steps() == 0);
      }
    }
  }
}

TEST_CASE("trainer: report names the op and applies the update all the same") {
  TrainerOptions options;
  options.non_finite = NonFinitePolicy::report;
  const auto t = toy({kNan}, options);
  const auto step = t->trainer.step();
  CHECK(step->is_applied);
  CHECK(step->note.find("; first: mul in module ''") != std::string::npos);
  CHECK(std::isnan(t->w.item()));
  CHECK(t->trainer.num_steps() == 1);
}
