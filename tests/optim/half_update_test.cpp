// Optimizers over parameters of 16 bits: masters, rounding, lost updates, state.
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/values.h>

#include <cmath>
#include <memory>

using namespace refrain;

namespace {

Tensor as(const Tensor& t, DType dtype) {
  const Tensor out = empty(t.shape(), dtype, t.device());
  launch(Convert{.x = t, .out = out});
  return out;
}

Tensor leaf(const Shape& shape, double value, DType dtype, const Device& device = Device::cpu()) {
  const Tensor t = full(shape, value, dtype, device);
  set_requires_grad(t);
  return t;
}

// SGD with lr 1 whose gradient is 1 everywhere and grad_scale the update: no dtype rounds it before the arithmetic does.
void apply_constant(Optimizer& optimizer, const Tensor& p, double update, int steps) {
  set_grad(p, full(p.shape(), 1, p.dtype(), p.device()));
  for (int i = 0; i < steps; ++i) optimizer.step(1, update);
}

Tensor of(const OptimizerState& state, const std::string& name) {
  for (const NamedTensor& entry : state.tensors)
    if (entry.name == name) return entry.tensor;
  return {};
}

}  // namespace

TEST_CASE("bf16 parameter with a master: small updates add up, the parameter is the master rounded") {
  const Tensor w = leaf({3}, 1, DType::bf16);
  Sgd optimizer({{.parameters = {w}, .names = {"w"}}}, {}, {.master = true});
  const Tensor master = of(optimizer.state_dict(), "w.master");
  REQUIRE(master.dtype() == DType::f32);
  apply_constant(optimizer, w, 1e-3, 100);
  CHECK(optimizer.num_lost_updates() == 0);
  // 100 additions in f32, each rounded by at most 2^-25, and 1e-3 itself: 100 · (2^-25 + 1e-3 · 2^-24)
  for (double v : master.to_vector<double>()) CHECK(std::abs(v - 0.9) < 100 * (0x1p-25 + 1e-3 * 0x1p-24));
  CHECK(w.to_vector<double>() == std::vector<double>(3, 0.8984375));
  const Tensor v = leaf({3}, 1, DType::bf16);
  Sgd other({{.parameters = {v}, .names = {"v"}}}, {}, {.master = true});
  apply_constant(other, v, 2e-3, 100);
  for (double x : of(other.state_dict(), "v.master").to_vector<double>()) CHECK(std::abs(x - 0.8) < 100 * (0x1p-25 + 2e-3 * 0x1p-24));
  CHECK(v.to_vector<double>() == std::vector<double>(3, 0.80078125));
}

TEST_CASE("bf16 parameter rounded to nearest: small updates are lost, and counted") {
  const Tensor w = leaf({5}, 1, DType::bf16), v = leaf({5}, 1, DType::bf16);
  Sgd optimizer({{.parameters = {w}}}), other({{.parameters = {v}}});
  apply_constant(optimizer, w, 1e-3, 100);  // half a spacing below 1 is 2^-9: nothing moves
  CHECK(w.to_vector<double>() == std::vector<double>(5, 1.0));
  CHECK(optimizer.num_lost_updates() == 5);
  CHECK(optimizer.num_updated_elements() == 5);
  apply_constant(other, v, 2e-3, 100);      // a whole spacing each time, twice too much
  CHECK(v.to_vector<double>() == std::vector<double>(5, 0.609375));
  CHECK(other.num_lost_updates() == 0);
  set_grad(v, zeros({5}, DType::bf16));
  other.step(1);
  CHECK(other.num_lost_updates() == 0);  // an update of zero is not lost
}

TEST_CASE("bf16 parameter rounded stochastically: right on average") {
  const std::int64_t n = 20000;
  for (double update : {1e-3, 2e-3}) {
    const Tensor w = leaf({n}, 1, DType::bf16);
    Sgd optimizer({{.parameters = {w}}}, {}, {.rounding = Rounding::stochastic, .seed = 1});
    apply_constant(optimizer, w, update, 100);
    double sum = 0;
    for (double v : w.to_vector<double>()) sum += v;
    // A rounding's error has mean 0 and a variance of at most (spacing / 2)², spacing 2^-8 in [0.5, 1): the mean of n
    // elements after 100 steps has a standard deviation of at most 2^-9 · sqrt(100 / n); 5 of them. Below 2^-23 of bias
    // a step come from f32's own rounding.
    const double bound = 5 * 0x1p-9 * std::sqrt(100.0 / double(n)) + 100 * 0x1p-23;
    CHECK(std::abs(sum / double(n) - (1 - 100 * update)) < bound);
    CHECK(optimizer.num_lost_updates() > 0);
  }
}

TEST_CASE("f16 parameters: eps 1e-8 is no zero, AdamW's decay is kept by a master") {
  for (double decay : {0.0, 0.01}) {
    for (bool master : {false, true}) {
      for (StateDType state : {StateDType::same_as_parameter, StateDType::f32}) {
        const Tensor w = leaf({4}, 1, DType::f16);
        AdamW optimizer({{.parameters = {w}, .names = {"w"}, .weight_decay = decay}}, {.eps = 1e-8}, {.state = state, .master = master});
        set_grad(w, zeros({4}, DType::f16));
        optimizer.step(1e-3);
        CHECK(w.to_vector<double>() == std::vector<double>(4, 1.0));
        if (master)
          CHECK(of(optimizer.state_dict(), "w.master").to_vector<float>() == std::vector<float>(4, decay == 0 ? 1.0f : float(1 - 1e-5)));
        CHECK(optimizer.num_lost_updates() == (decay == 0 || master ? 0 : 4));
      }
    }
  }
}

TEST_CASE("state of 16-bit parameters: bytes are those of the chosen dtype, masters count as state") {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const std::int64_t size = std::int64_t(size_of(dtype)), is_half = size == 2;
    for (StateDType state : {StateDType::same_as_parameter, StateDType::f32}) {
      for (bool master : {false, true}) {
        for (const Device& device : {Device::new_cpu(), Device::plan()}) {
          const Tensor w = leaf({1000}, 1, dtype, device);
          AdamW optimizer({{.parameters = {w}}}, {}, {.state = state, .master = master});
          const std::int64_t state_size = state == StateDType::f32 ? 4 : size;
          const std::int64_t expected = 1000 * (2 * state_size + (master && is_half ? 4 : 0));
          CHECK(device.live_bytes(MemoryKind::optimizer_state) == expected);
          set_grad(w, full({1000}, 0.5, dtype, device));
          const std::int64_t before = device.live_bytes();
          optimizer.step(1e-3);
          CHECK(device.live_bytes() == before);
          CHECK(device.peak_bytes() <= before + 2 * 8);  // counters: lost updates, values that are not finite
        }
      }
    }
  }
}

TEST_CASE("optimizers of 16-bit parameters: stopped at any step and loaded again they go on bit for bit") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (StateDType state : {StateDType::same_as_parameter, StateDType::f32}) {
      for (bool master : {false, true}) {
        const UpdateOptions update{.rounding = Rounding::stochastic, .state = state, .master = master, .seed = 9};
        const auto grad = [&](int t) { return as(random_tensor({300}, DType::f32, std::uint64_t(t)), dtype); };
        const auto start = [&] {
          const Tensor w = as(random_tensor({300}, DType::f32, 77), dtype);
          set_requires_grad(w);
          return w;
        };
        for (int stop : {0, 1, 3}) {
          const Tensor p = start(), q = start();
          AdamW unbroken({{.parameters = {p}, .names = {"w"}, .weight_decay = 0.05}}, {}, update);
          auto broken = std::make_unique<AdamW>(std::vector<ParameterGroup>{{.parameters = {q}, .names = {"w"}, .weight_decay = 0.05}},
                                                AdamOptions{}, update);
          for (int t = 0; t < 5; ++t) {
            if (t == stop) {
              OptimizerState saved = broken->state_dict();
              CHECK(saved.tensors.size() == (master ? 3u : 2u));
              for (NamedTensor& entry : saved.tensors) entry.tensor = clone(entry.tensor);
              broken = std::make_unique<AdamW>(std::vector<ParameterGroup>{{.parameters = {q}, .names = {"w"}, .weight_decay = 0.05}},
                                               AdamOptions{}, update);
              broken->load_state(saved);
            }
            set_grad(p, grad(t));
            set_grad(q, grad(t));
            unbroken.step(1e-2);
            broken->step(1e-2);
          }
          CHECK(same_bits(p, q));
          if (master) CHECK(same_bits(of(unbroken.state_dict(), "w.master"), of(broken->state_dict(), "w.master")));
        }
      }
    }
  }
}

TEST_CASE("stochastic rounding goes by the parameter's name, the step and the seed, not by its neighbours") {
  const auto train = [](std::vector<std::string> names, const std::string& wanted, std::uint64_t seed) {
    ParameterGroup group;
    Tensor result;
    for (const std::string& name : names) {
      group.parameters.push_back(leaf({1000}, 1, DType::bf16));
      group.names.push_back(name);
      set_grad(group.parameters.back(), full({1000}, 1, DType::bf16));
      if (name == wanted) result = group.parameters.back();
    }
    Sgd optimizer({group}, {}, {.rounding = Rounding::stochastic, .seed = seed});
    for (int t = 0; t < 3; ++t) optimizer.step(1e-3);
    return result;
  };
  const Tensor alone = train({"b"}, "b", 1);
  CHECK(same_bits(alone, train({"a", "b", "c"}, "b", 1)));
  CHECK_FALSE(same_bits(alone, train({"a", "b", "c"}, "a", 1)));
  CHECK_FALSE(same_bits(alone, train({"b"}, "b", 2)));
  CHECK(update_key(1, 2, "blocks.0.fc1.weight") != update_key(1, 3, "blocks.0.fc1.weight"));
  CHECK(update_key(1, 2, "blocks.0.fc1.weight").purpose == RandomPurpose::update);
}

TEST_CASE("masters: a parameter changed from outside counts after reset_masters") {
  const Tensor w = leaf({2}, 1, DType::bf16);
  Sgd optimizer({{.parameters = {w}, .names = {"w"}}}, {}, {.master = true});
  fill_values(w, 3);
  optimizer.reset_masters();
  CHECK(of(optimizer.state_dict(), "w.master").to_vector<double>() == std::vector<double>(2, 3.0));
  const Tensor x = leaf({2}, 1, DType::f32);
  Sgd wide({{.parameters = {x}}}, {}, {.state = StateDType::f32, .master = true});
  CHECK(wide.state_dict().tensors.empty());
  set_grad(x, full({2}, 1, DType::f32));
  wide.step(0.5);
  CHECK(x.to_vector<double>() == std::vector<double>(2, 0.5));
  CHECK(wide.num_updated_elements() == 2);
  CHECK(wide.num_lost_updates() == 0);
}


TEST_CASE("adam: the square of a large finite gradient saturates in f16 state instead of freezing its weight for ever") {
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    const Tensor w = leaf({2}, 1, DType::f16);
    Adam optimizer({{.parameters = {w}, .names = {"w"}}}, {}, {.rounding = rounding});
    set_grad(w, full({2}, 10000, DType::f16));  // 0.001 · 1e8 is beyond 65,504
    optimizer.step(1e-3);
    CHECK(of(optimizer.state_dict(), "w.square").to_vector<double>() == std::vector<double>(2, 65504.0));
    CHECK(optimizer.first_non_finite() == -1);
  }
}

TEST_CASE("optimizers say which parameter a step left infinite or NaN, in any dtype") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t size : {1, 7, 1000, 40000}) {
      const Tensor a = leaf({size}, 1, dtype), b = leaf({size}, 1, dtype);
      Sgd optimizer({{.parameters = {a, b}, .names = {"a", "b"}}});
      set_grad(a, full({size}, 1, dtype));
      set_grad(b, full({size}, 1, dtype));
      optimizer.step(0.5);
      CHECK(optimizer.first_non_finite() == -1);
      fill_values(view::slice(b, 0, size - 1, size), INFINITY);
      optimizer.step(0.5);
      CHECK(optimizer.first_non_finite() == 1);
      optimizer.step(0.5, 0);
      CHECK(optimizer.first_non_finite() == 1);
    }
  }
}
