// Loss scaling: the scale's walk, unscaling before clipping, and what is kept over a restart.
#include <refrain/autograd/tape.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor leaf(const Tensor& t) {
  set_requires_grad(t);
  return t;
}

Tensor with_grad(const std::vector<double>& grad, DType dtype) {
  const Tensor values = tensor_of(grad, {std::int64_t(grad.size())}, DType::f32), cast = empty(values.shape(), dtype);
  launch(Convert{.x = values, .out = cast});
  const Tensor p = leaf(zeros(values.shape(), dtype));
  set_grad(p, cast);
  return p;
}

// What the scaler is to do, written from the description: a list of outcomes, the whole history looked at each time.
struct ReferenceScaler {
  GradScalerOptions options;
  std::vector<bool> history;
  double scale() const {
    double s = options.init_scale;
    std::int64_t clean = 0;
    for (bool ok : history) {
      clean = ok ? clean + 1 : 0;
      if (!ok) s = s * options.backoff < options.min_scale ? options.min_scale : s * options.backoff;
      if (clean == options.growth_interval) {
        s = s * options.growth > options.max_scale ? options.max_scale : s * options.growth;
        clean = 0;
      }
    }
    return s;
  }
  std::int64_t skipped_in_a_row() const {
    std::int64_t count = 0;
    for (auto i = history.rbegin(); i != history.rend() && !*i; ++i) ++count;
    return count;
  }
};

}  // namespace

TEST_CASE("grad_scaler: 200 clean steps with growth at each stay finite, at the documented cap") {
  GradScaler scaler({.growth_interval = 1});
  for (int i = 0; i < 200; ++i) {
    CHECK(scaler.update(true));
    CHECK(std::isfinite(scaler.scale()));
  }
  CHECK(scaler.scale() == 0x1p24);
  for (int i = 0; i < 200; ++i) CHECK_FALSE(scaler.update(false));
  CHECK(scaler.scale() == 0x1p-14);
  CHECK(scaler.num_skipped_in_a_row() == 200);
  CHECK(scaler.num_skipped_in_a_row_at_lowest_scale() == 200 - 38);  // 2^24 to 2^-14
  scaler.update(true);
  CHECK(scaler.num_skipped_in_a_row_at_lowest_scale() == 0);
  CHECK(scaler.num_skipped() == 200);
}

TEST_CASE("grad_scaler: a thousand random overflow patterns walk as the reference model does") {
  const RandomKey key{.seed = 5, .purpose = RandomPurpose::user};
  std::uint64_t draw = 0;
  const auto uniform = [&] { return double(key.uniform(draw++)); };
  for (int pattern = 0; pattern < 1000; ++pattern) {
    const GradScalerOptions options{.init_scale = std::ldexp(1.0, int(uniform() * 20)),
                                    .growth = uniform() < 0.5 ? 2.0 : 1.5 + uniform(),
                                    .backoff = uniform() < 0.5 ? 0.5 : 0.1 + 0.8 * uniform(),
                                    .growth_interval = 1 + std::int64_t(uniform() * 6),
                                    .min_scale = std::ldexp(1.0, -int(uniform() * 8)),
                                    .max_scale = std::ldexp(1.0, 20 + int(uniform() * 8))};
    GradScaler scaler(options);
    ReferenceScaler reference{options, {}};
    const double chance = uniform();
    std::int64_t skipped = 0;
    bool is_same = true;
    for (int step = 0; step < 60; ++step) {
      const bool is_finite = uniform() < chance;
      is_same = is_same && scaler.update(is_finite) == is_finite;
      reference.history.push_back(is_finite);
      skipped += !is_finite;
      is_same = is_same && scaler.scale() == reference.scale() && scaler.num_skipped() == skipped &&
                scaler.num_skipped_in_a_row() == reference.skipped_in_a_row() && scaler.scale() >= options.min_scale &&
                scaler.scale() <= options.max_scale;
      if (step == 30) {  // a restart in the middle
        GradScaler loaded(options);
        loaded.load_state(scaler.state_dict());
        is_same = is_same && loaded.state_dict() == scaler.state_dict();
      }
    }
    CHECK(is_same);
  }
}

TEST_CASE("grad_scaler: static and off never move, and count every skip") {
  GradScaler fixed({.mode = ScalerMode::fixed, .init_scale = 128, .growth_interval = 1}), off({.mode = ScalerMode::off});
  for (int i = 0; i < 5; ++i) {
    for (GradScaler* scaler : {&fixed, &off}) CHECK(scaler->update(true));
  }
  for (int i = 0; i < 3; ++i) {
    for (GradScaler* scaler : {&fixed, &off}) CHECK_FALSE(scaler->update(false));
  }
  CHECK(fixed.scale() == 128);
  CHECK(off.scale() == 1);
  CHECK(fixed.num_skipped_in_a_row_at_lowest_scale() == 3);
  CHECK(off.num_skipped_in_a_row_at_lowest_scale() == 3);
}

TEST_CASE("grad_scaler: the norm is that of the true gradient, clipping comes after unscaling") {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    GradScaler scaler({.init_scale = 1024});
    const Tensor p = with_grad({3 * 1024.0, 4 * 1024.0}, dtype);
    const Tensor before = clone(grad_of(p));
    const GradScaler::Unscaled grads = scaler.check(std::vector<Tensor>{p});
    CHECK(grads.is_finite);
    CHECK(grads.grad_norm == 5);
    CHECK(grads.first_non_finite == -1);
    CHECK(same_bits(grad_of(p), before));
    Sgd optimizer({{.parameters = {p}}});
    REQUIRE(scaler.update(grads.is_finite));
    optimizer.step(1, grads.grad_scale * clip_factor(grads.grad_norm, 1));
    // One rounding of the stored result, and f32's of the factor.
    const double u = dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const std::vector<double> values = p.to_vector<double>();
    CHECK(std::abs(values[0] + 0.6) <= 0.6 * u);
    CHECK(std::abs(values[1] + 0.8) <= 0.8 * u);
  }
}

TEST_CASE("grad_scaler: what is not finite is found in every dtype, and by its parameter") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (double bad : {kInf, -kInf, std::numeric_limits<double>::quiet_NaN()}) {
      for (std::size_t at : {0u, 31u, 99u}) {
        std::vector<double> values(100, 1.0);
        values[at] = bad;
        const Tensor no_grad = leaf(zeros({2}, dtype));
        const std::vector<Tensor> parameters{with_grad({1, 2}, dtype), no_grad, with_grad(values, dtype), with_grad({kInf}, dtype)};
        const GradScaler::Unscaled grads = GradScaler().check(parameters);
        CHECK_FALSE(grads.is_finite);
        CHECK(grads.first_non_finite == 2);
      }
    }
  }
  // Large gradients are no overflow: each square fits.
  CHECK(GradScaler().check(std::vector<Tensor>{with_grad(std::vector<double>(1000, 65504.0), DType::f16)}).is_finite);
  CHECK(GradScaler().check(std::vector<Tensor>{with_grad(std::vector<double>(1000, 3e38), DType::bf16)}).is_finite);
  CHECK(GradScaler().check({}).is_finite);
}

TEST_CASE("grad_scaler: a skipped step moves neither weight, optimizer state nor schedule") {
  const Tensor p = leaf(full({1}, 1, DType::f32));
  AdamW optimizer({{.parameters = {p}, .names = {"w"}}});
  GradScaler scaler;
  const Schedule schedule = Schedule::cosine(1, 4);
  std::vector<bool> applied;
  for (double grad : {kInf, 1.0, 1.0, kInf, 1.0}) {
    set_grad(p, full({1}, grad * scaler.scale(), DType::f32));
    const Tensor before = clone(p), mean = clone(optimizer.state_dict().tensors[0].tensor);
    const GradScaler::Unscaled grads = scaler.check(optimizer.parameters());
    applied.push_back(scaler.update(grads.is_finite));
    if (applied.back()) optimizer.step(schedule.lr(optimizer.num_steps()), grads.grad_scale);
    CHECK(same_bits(p, before) != applied.back());
    CHECK(same_bits(optimizer.state_dict().tensors[0].tensor, mean) != applied.back());
  }
  CHECK(applied == std::vector<bool>{false, true, true, false, true});
  CHECK(optimizer.num_steps() == 3);
  CHECK(optimizer.state_dict().scalars.at("w.num_steps") == 3);
  CHECK(schedule.lr(optimizer.num_steps()) == Approx(0.14644660940672627).epsilon(1e-15));
  CHECK(scaler.num_skipped() == 2);
}

TEST_CASE("grad_scaler: scale and counter come back, into a new scaler and into one that has trained") {
  GradScaler original({.init_scale = 256, .growth_interval = 10});
  for (int i = 0; i < 7; ++i) original.update(true);
  const auto state = original.state_dict();
  GradScaler fresh({.growth_interval = 10}), trained({.growth_interval = 10});
  for (int i = 0; i < 25; ++i) trained.update(i % 3 != 0);
  for (GradScaler* scaler : {&fresh, &trained}) {
    scaler->load_state(state);
    CHECK(scaler->scale() == 256);
    CHECK(scaler->num_clean_steps() == 7);
  }
  for (int i = 0; i < 20; ++i) {
    const bool is_finite = i % 7 != 5;
    original.update(is_finite);
    for (GradScaler* scaler : {&fresh, &trained}) {
      scaler->update(is_finite);
      CHECK(scaler->state_dict() == original.state_dict());
    }
  }
}

TEST_CASE("grad_scaler: a retry at half the scale starts from clean gradients; NaN is a counted skip, no loop") {
  // The true gradient is 1.5: 98304 at scale 65536, an f16 infinity, and 49152 at half of it.
  GradScaler scaler({.init_scale = 65536});
  const Tensor p = leaf(zeros({1}, DType::f16));
  const auto backward_at = [&](double true_grad) {
    clear_grad(p);
    const Tensor grad = empty({1}, DType::f16);
    launch(Convert{.x = full({1}, true_grad * scaler.scale(), DType::f32), .out = grad});
    set_grad(p, grad);
    return scaler.check(std::vector<Tensor>{p});
  };
  int tries = 0;
  GradScaler::Unscaled grads;
  do grads = backward_at(1.5), ++tries;
  while (!scaler.update(grads.is_finite));
  CHECK(tries == 2);
  CHECK(grads.grad_norm == 1.5);
  CHECK(float(*grad_of(p).data<f16>()) * grads.grad_scale == 1.5);
  const double before = scaler.scale();
  CHECK_FALSE(scaler.update(backward_at(std::nan("")).is_finite));
  CHECK(scaler.scale() == before / 2);
  CHECK(scaler.num_skipped_in_a_row() == 1);
}

TEST_CASE("grad_scaler: options and states that make no sense are refused by name") {
  const auto refused = [](const GradScalerOptions& options) { return message_of([&] { GradScaler scaler(options); }); };
  CHECK(refused({}) == "");
  CHECK(refused({.init_scale = 0}) == "grad_scaler: init_scale must be positive and finite, got 0");
  CHECK(refused({.init_scale = kInf}) == "grad_scaler: init_scale must be positive and finite, got inf");
  CHECK(refused({.growth = 1}) == "grad_scaler: growth must be finite and above 1, got 1");
  CHECK(refused({.growth = kInf}) == "grad_scaler: growth must be finite and above 1, got inf");
  CHECK(refused({.backoff = 1}) == "grad_scaler: backoff must be in (0, 1), got 1");
  CHECK(refused({.growth_interval = 0}) == "grad_scaler: growth_interval must be at least 1, got 0");
  CHECK(refused({.min_scale = 0}) == "grad_scaler: min_scale must be at least 2^-100, got 0");
  CHECK_FALSE(refused({.max_scale = kInf}).empty());
  CHECK(refused({.init_scale = 4, .max_scale = 2}) ==
        "grad_scaler: init_scale must be in [min_scale, max_scale] = [6.10352e-05, 2], got 4");
  CHECK(refused({.mode = ScalerMode::off, .init_scale = 0}) == "");
  GradScaler scaler;
  const auto good = scaler.state_dict();
  const auto load = [&](const auto& change) {
    auto state = good;
    change(state);
    return message_of([&] { scaler.load_state(state); });
  };
  CHECK(load([](auto& s) { s.erase("scale"); }) == "grad_scaler: state has no 'scale'");
  CHECK(load([](auto& s) { s["other"] = 1; }) == "grad_scaler: state has unexpected 'other'");
  CHECK(load([](auto& s) { s["num_skipped"] = 0.5; }) == "grad_scaler: 'num_skipped' must be a count, got 0.5");
  CHECK_FALSE(load([](auto& s) { s["scale"] = kInf; }).empty());
  CHECK_FALSE(load([](auto& s) { s["scale"] = std::nan(""); }).empty());
  CHECK(scaler.state_dict() == good);
}
