// Optimizers against PyTorch's trajectories, and what their state and steps promise.
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/tape.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/values.h>

#include <fstream>
#include <memory>
#include <sstream>

using namespace refrain;

namespace {

Tensor leaf(const Tensor& t) {
  set_requires_grad(t);
  return t;
}

std::unique_ptr<Optimizer> make(const std::string& name, std::vector<ParameterGroup> groups) {
  const AdamOptions adam{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6};
  if (name == "sgd") return std::make_unique<Sgd>(std::move(groups));
  if (name == "sgd_momentum") return std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = 0.9});
  if (name == "sgd_nesterov") return std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = 0.9, .nesterov = true});
  if (name == "adam") return std::make_unique<Adam>(std::move(groups), adam);
  return std::make_unique<AdamW>(std::move(groups), adam);
}

const std::vector<std::string> kNames{"sgd", "sgd_momentum", "sgd_nesterov", "adam", "adamw"};

// The inputs of make_optim_fixture.py.
Tensor fixture_parameter(DType dtype) {
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) values.push_back(std::sin(i + 1));
  return leaf(tensor_of(values, {5}, dtype));
}

void set_fixture_grad(const Tensor& p, int t) {
  clear_grad(p);
  if (t == 3) return;
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) values.push_back(std::cos(3 * i + t) * (t + 1) / 2);
  set_grad(p, tensor_of(values, {5}, p.dtype()));
}

}  // namespace

TEST_CASE("optimizers: 6 steps follow PyTorch's, one of them without a gradient") {
  std::ifstream file(REFRAIN_SOURCE_DIR "/tests/fixtures/optim_trajectories.txt");
  REQUIRE(file);
  std::map<std::string, std::vector<std::vector<double>>> expected;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string name;
    int step;
    std::vector<double> values(5);
    in >> name >> step;
    for (double& v : values) in >> v;
    REQUIRE(in);
    expected[name].push_back(values);
  }
  for (DType dtype : {DType::f64, DType::f32}) {
    for (const std::string& name : kNames) {
      const Tensor p = fixture_parameter(dtype);
      const auto optimizer = make(name, {{.parameters = {p}, .weight_decay = 0.05}});
      REQUIRE(expected[name].size() == 6);
      for (int t = 0; t < 6; ++t) {
        set_fixture_grad(p, t);
        optimizer->step(0.1);
        INFO(name << " step " << t << " " << dtype);
        CHECK(error_against(p, expected[name][std::size_t(t)]) < (dtype == DType::f64 ? 1e-14 : 1e-6));
      }
      CHECK(optimizer->num_steps() == 6);
    }
  }
}

TEST_CASE("optimizers: a parameter without a gradient is left alone, decay and all") {
  for (const std::string& name : kNames) {
    const Tensor used = leaf(full({3}, 1, DType::f32)), unused = leaf(full({3}, 1, DType::f32));
    const auto optimizer = make(name, {{.parameters = {unused, used}, .weight_decay = 0.1}});
    set_grad(used, full({3}, 1, DType::f32));
    optimizer->step(0.1);
    CHECK(unused.to_vector<double>() == std::vector<double>(3, 1.0));
    CHECK(used.to_vector<double>() != std::vector<double>(3, 1.0));
  }
}

TEST_CASE("optimizers: groups have their own decay and factor on the rate") {
  const Tensor a = leaf(full({1}, 1, DType::f64)), b = leaf(full({1}, 1, DType::f64)), c = leaf(full({1}, 1, DType::f64));
  Sgd optimizer({{.parameters = {a}, .weight_decay = 0.5}, {.parameters = {b}, .lr_scale = 0.1}, {.parameters = {c}, .lr_scale = 0}});
  for (const Tensor& t : {a, b, c}) set_grad(t, full({1}, 1, DType::f64));
  optimizer.step(0.1);
  CHECK(a.item() == Approx(0.85).epsilon(1e-15));
  CHECK(b.item() == Approx(0.99).epsilon(1e-15));
  CHECK(c.item() == 1);
}

TEST_CASE("optimizers: sgd without momentum keeps no state, the others account for theirs") {
  const auto state_bytes = [](const std::string& name, bool frozen) {
    const Device device = Device::new_cpu();
    const Tensor p = zeros({1000}, DType::f32, device);
    if (!frozen) set_requires_grad(p);
    const auto optimizer = make(name, {{.parameters = {p}}});
    CHECK(device.live_bytes() == 4000 + device.live_bytes(MemoryKind::optimizer_state));
    return device.live_bytes(MemoryKind::optimizer_state);
  };
  CHECK(state_bytes("sgd", false) == 0);
  CHECK(state_bytes("sgd_momentum", false) == 4000);
  CHECK(state_bytes("adamw", false) == 8000);
  CHECK(state_bytes("adam", false) == 8000);
  CHECK(state_bytes("adamw", true) == 0);
}

TEST_CASE("optimizers: stopped at any step and loaded again they go on bit for bit") {
  for (const std::string& name : kNames) {
    for (int stop = 0; stop <= 6; ++stop) {
      const Tensor p = fixture_parameter(DType::f32), q = fixture_parameter(DType::f32);
      const auto unbroken = make(name, {{.parameters = {p}, .names = {"w"}, .weight_decay = 0.05}});
      auto broken = make(name, {{.parameters = {q}, .names = {"w"}, .weight_decay = 0.05}});
      for (int t = 0; t < 6; ++t) {
        if (t == stop) {
          OptimizerState state = broken->state_dict();
          for (NamedTensor& entry : state.tensors) entry.tensor = clone(entry.tensor);
          broken = make(name, {{.parameters = {q}, .names = {"w"}, .weight_decay = 0.05}});
          broken->load_state(state);
        }
        set_fixture_grad(p, t);
        set_fixture_grad(q, t);
        unbroken->step(0.1);
        broken->step(0.1);
      }
      CHECK(same_bits(p, q));
      CHECK(broken->state_dict().scalars == unbroken->state_dict().scalars);
    }
  }
}

TEST_CASE("optimizers: a state that does not fit is refused and changes nothing") {
  const Tensor p = fixture_parameter(DType::f32);
  AdamW optimizer({{.parameters = {p}, .names = {"w"}}});
  set_fixture_grad(p, 0);
  optimizer.step(0.1);
  const OptimizerState good = optimizer.state_dict();
  REQUIRE(good.tensors.size() == 2);
  CHECK(good.tensors[0].name == "w.mean");
  const Tensor before = clone(good.tensors[0].tensor);
  const auto refused = [&](const auto& change) {
    OptimizerState state{{{"w.mean", full({5}, 9, DType::f32)}, {"w.square", full({5}, 9, DType::f32)}}, good.scalars};
    change(state);
    return message_of([&] { optimizer.load_state(state); });
  };
  CHECK(refused([](OptimizerState& s) { s.tensors.pop_back(); }) == "optimizer: state has no 'w.square'");
  CHECK(refused([](OptimizerState& s) {
          s.tensors.push_back({"v.mean", zeros({1}, DType::f32)});
        }) == "optimizer: state has unexpected 'v.mean'");
  CHECK(refused([](OptimizerState& s) { s.tensors[1].tensor = zeros({4}, DType::f32); }) ==
        "optimizer: state 'w.square' must be f32 [5], got f32 [4]");
  CHECK(refused([](OptimizerState& s) { s.scalars.erase("num_steps"); }) == "optimizer: state has no 'num_steps'");
  CHECK(refused([](OptimizerState& s) { s.scalars["w.num_steps"] = -1; }) == "optimizer: 'w.num_steps' must be a count, got -1");
  CHECK(same_bits(good.tensors[0].tensor, before));
  CHECK(optimizer.num_steps() == 1);
}

TEST_CASE("optimizers: zero_grad drops gradients, a step bumps the version of what it changed") {
  const Tensor p = fixture_parameter(DType::f32), idle = leaf(zeros({2}, DType::f32));
  Sgd optimizer({{.parameters = {p, idle}}});
  set_fixture_grad(p, 0);
  const auto version = p.storage()->version(), idle_version = idle.storage()->version();
  optimizer.step(0.1);
  CHECK(p.storage()->version() > version);
  CHECK(idle.storage()->version() == idle_version);
  optimizer.zero_grad();
  CHECK_FALSE(grad_of(p).defined());
}

TEST_CASE("optimizers: updating a parameter that backward still needs is noticed") {
  const Tensor x = leaf(full({2}, 1, DType::f32)), target = zeros({2}, DType::f32);
  const Tensor loss = mse_loss(x, target);
  Sgd optimizer({{.parameters = {x}}});
  set_grad(x, full({2}, 1, DType::f32));
  optimizer.step(0.1);
  CHECK_THROWS_AS(backward(loss), InvalidArgument);
}

TEST_CASE("optimizers: micro-batches weighted by their size, a short last window by its own") {
  // 10 micro-batches with dL/dw = -i, 4 to an update: windows of 4, 4 and 2.
  for (int accumulate : {4, 16}) {
    const Tensor w = leaf(zeros({1}, DType::f64));
    Sgd optimizer({{.parameters = {w}}});
    for (int begin = 1; begin <= 10; begin += accumulate) {
      const int end = std::min(11, begin + accumulate);
      for (int i = begin; i < end; ++i) {
        const double before = grad_of(w).defined() ? grad_of(w).item() : 0;
        set_grad(w, full({1}, before - double(i) / (end - begin), DType::f64));
      }
      optimizer.step(1);
      optimizer.zero_grad();
    }
    CHECK(w.item() == Approx(accumulate == 4 ? 18.5 : 5.5).epsilon(1e-14));
    CHECK(optimizer.num_steps() == (accumulate == 4 ? 3 : 1));
    CHECK_FALSE(grad_of(w).defined());
  }
}

TEST_CASE("optimizers: impossible settings are refused") {
  const Tensor p = leaf(zeros({2}, DType::f32));
  Sgd optimizer({{.parameters = {p}}});
  CHECK_THROWS_AS(optimizer.step(-1), InvalidArgument);
  CHECK_THROWS_AS(optimizer.step(std::nan("")), InvalidArgument);
  CHECK_THROWS_AS(optimizer.step(1, HUGE_VAL), InvalidArgument);
  CHECK(optimizer.num_steps() == 0);
  CHECK_THROWS_AS(Sgd({{.parameters = {p}}}, {.momentum = 1}), InvalidArgument);
  CHECK_THROWS_AS(Sgd({{.parameters = {p}}}, {.nesterov = true}), InvalidArgument);
  CHECK_THROWS_AS(AdamW({{.parameters = {p}}}, {.beta1 = 1}), InvalidArgument);
  CHECK_THROWS_AS(AdamW({{.parameters = {p}, .weight_decay = -1}}), InvalidArgument);
  CHECK(message_of([&] { Sgd({{.parameters = {p, p}}}); }) == "optimizer: parameter '1' is already there under another name");
  CHECK(message_of([&] { Sgd({{.parameters = {p}, .names = {"a", "b"}}}); }) == "optimizer: a group of 1 parameters has 2 names");
}
