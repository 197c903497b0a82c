// The strategies as an embedder uses them: a weight whose gradients are known.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/all.h>
#include <refrain/dist/data_parallel.h>
#include <refrain/dist/local_sgd.h>
#include <refrain/dist/sharded.h>
#include <refrain/optim/sgd.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>

#include <chrono>
#include <thread>

using namespace refrain;
using refrain::testing::run_ranks;

namespace {

Tensor leaf(double value, const Device& device) {
  const Tensor t = full({}, value, DType::f32, device);
  set_requires_grad(t);
  return t;
}

Sgd sgd_of(const Tensor& w) { return Sgd({ParameterGroup{.parameters = {w}, .names = {"w"}}}); }

}  // namespace

TEST_CASE("ddp: a weight used by two nested regions is reduced once a backward: (4 + 12) / 2 = 8, twice") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf(2, group->device());
    const Tensor x = full({}, group->rank() == 0 ? 1 : 3, DType::f32, group->device());
    DataParallel ddp(*group, std::vector<NamedTensor>{{"w", w}}, {w});
    for (int i = 0; i < 2; ++i) {
      clear_grad(w);
      const auto inner = [w](const Tensor& t) { return mul(w, t); };
      const Tensor y = checkpoint([w, inner](const Tensor& t) { return mul(w, checkpoint(inner, t)); }, x);
      int finals = 0;
      BackwardOptions then;
      then.on_final = [&](const Tensor&, bool) { ++finals; };
      backward(y, ddp.options(std::move(then)));
      ddp.finish();
      check(finals == 1 && grad_of(w).item() == 8, "dw is ", grad_of(w).item(), " after ", finals, " announcements");
    }
  });
}

TEST_CASE("ddp: a parameter used on one rank counts as zero on the other, one that nobody uses has no gradient: 1, 2, none") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Device& device = group->device();
    const Tensor a = leaf(1, device), b = leaf(1, device), c = leaf(1, device);
    const std::vector<NamedTensor> all{{"a", a}, {"b", b}, {"c", c}};
    DataParallel ddp(*group, all, {a, b, c}, {.bucket_bytes = 64});
    Sgd sgd({ParameterGroup{.parameters = {a, b, c}, .names = {"a", "b", "c"}, .weight_decay = 0.1}});
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      backward(group->rank() == 0 ? mul(a, 2) : mul(b, 4), ddp.options());
      ddp.finish();
      check(grad_of(a).item() == 1 && grad_of(b).item() == 2, "gradients ", grad_of(a).item(), " and ", grad_of(b).item());
      check(!grad_of(c).defined(), "c has a gradient");
      sgd.step(0.1);
      check(c.item() == 1, "c is ", c.item());
    }
  });
}

TEST_CASE("ddp and local_sgd: ranks that begin with rank + 1 all hold rank 0's values") {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf(group->rank() + 1, group->device());
    const Tensor buffer = full({2}, group->rank() + 1, DType::f32, group->device());
    const std::vector<NamedTensor> state{{"w", w}, {"buffer", buffer}};
    const DataParallel ddp(*group, state, {w});
    check(w.item() == 1 && buffer.to_vector<float>()[1] == 1, "not rank 0's");
    fill_values(w.without_autograd(), group->rank() + 1);
    Sgd sgd = sgd_of(w);
    const LocalSgd averaging(*group, state, sgd);
    check(w.item() == 1, "not rank 0's");
  });
}

TEST_CASE("ddp: the ranks' norms are those of reduced gradients, and gradients are views of few buckets, freed with them") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Device& device = group->device();
    const Tensor a = leaf(0, device), b = leaf(0, device);
    DataParallel ddp(*group, std::vector<NamedTensor>{}, {a, b});
    const std::int64_t live = device.live_bytes();
    for (int step = 0; step < 3; ++step) {
      backward(add(mul(a, group->rank() == 0 ? 2 : 4), mul(b, 8)), ddp.options());
      ddp.finish();
      check(grad_of(a).item() == 3 && grad_of(b).item() == 8, "wrong gradients");
      check(grad_of(a).storage() == grad_of(b).storage(), "two buckets");
      check(device.live_bytes(MemoryKind::communication) == 0, "communication memory is left");
      clear_grad(a);
      clear_grad(b);
      check(device.live_bytes() == live, "memory is left");
    }
  });
}

TEST_CASE("local_sgd: gradients -1 and -3, lr 1, H = 4, 10 steps: 18 and 22 before the scope ends, 20 after, 3 averagings") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf(0, group->device());
    Sgd sgd = sgd_of(w);
    {
      LocalSgdScope averaging(*group, {{"w", w}}, sgd, {.steps = 4});
      for (int step = 0; step < 10; ++step) {
        backward(mul(w, group->rank() == 0 ? -1 : -3));
        sgd.step(1);
        sgd.zero_grad();
        averaging.step();
      }
      check(w.item() == (group->rank() == 0 ? 18 : 22), "w is ", w.item());
      check(averaging.num_averagings() == 2 && averaging.num_steps_since() == 2, "other counts");
    }
    check(w.item() == 20, "w is ", w.item());
  });
}

TEST_CASE("local_sgd: a scope that is left by an exception averages nothing") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf(0, group->device());
    Sgd sgd = sgd_of(w);
    try {
      LocalSgdScope averaging(*group, {{"w", w}}, sgd, {.steps = 4});
      fill_values(w.without_autograd(), group->rank());
      averaging.step();
      throw 1;
    } catch (int) {
    }
    check(w.item() == group->rank(), "w is ", w.item());
  });
}

TEST_CASE("local_sgd: an outer step with Nesterov's momentum, by hand") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf(1, group->device());
    Sgd sgd = sgd_of(w);
    LocalSgd averaging(*group, {{"w", w}}, sgd, {.steps = 1, .outer_lr = 0.5, .outer_momentum = 0.5});
    fill_values(w.without_autograd(), group->rank() == 0 ? 0 : -1);  // average -0.5: change 1.5
    averaging.step();                                                // m = 1.5, w = 1 - 0.5 * (1.5 + 0.75)
    check(w.item() == -0.125, "w is ", w.item());
    fill_values(w.without_autograd(), -1.125);  // change 1; m = 1.75, w = -0.125 - 0.5 * (1 + 0.875)
    averaging.step();
    check(w.item() == -1.0625, "w is ", w.item());
  });
}

TEST_CASE("local_sgd: bf16 averages are rounded stochastically, right on average, with the same numbers on all ranks") {
  std::vector<float> values[2];
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = full({4096}, group->rank() == 0 ? 1 : 1 + 0x1p-7, DType::bf16, group->device());  // neighbours: the mean is between
    set_requires_grad(w);
    Sgd sgd = sgd_of(w);
    LocalSgd averaging(*group, {{"w", w}}, sgd, {.steps = 1, .bucket_bytes = 1000, .rounding = Rounding::stochastic, .seed = 3});
    fill_values(w.without_autograd(), group->rank() == 0 ? 1 : 1 + 0x1p-7);
    averaging.step();
    values[group->rank()] = w.to_vector<float>();
  });
  CHECK(values[0] == values[1]);
  double mean = 0;
  for (const float v : values[0]) mean += double(v) / 4096;
  CHECK(mean == Approx(1 + 0x1p-8).epsilon(0x1p-7 / 20));
}

TEST_CASE("sharded: weights of two stages are pieces on two ranks, whole in their stages alone: a step by hand") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Device& device = group->device();
    const auto vector = [&](std::vector<float> values) {
      const Tensor t = from_values(values, {std::int64_t(values.size())}, device);
      set_requires_grad(t);
      return t;
    };
    const Tensor a = vector({1, 2, 3}), b = vector({4, 5, 6});
    const std::vector<NamedTensor> named{{"a", a}, {"b", b}};
    Sharded sharded(*group, {{named[0]}, {named[1]}});
    check(!a.has_bytes() && !b.has_bytes(), "parameters are still there");
    check(sharded.find("a")->piece.numel() == (group->rank() == 0 ? 1 : 2), "three elements on two ranks: 1 and 2");
    const std::vector<std::string> none;
    Sgd sgd(sharded.pieces_of(make_groups(named, 0, none)));
    {
      const Sharded::Pass pass(sharded, "step");
      const Tensor x = full({3}, group->rank() == 0 ? 1 : 3, DType::f32, device);
      sharded.enter(0);
      const Tensor hidden = mul(a, x);  // da = b · x
      sharded.enter(1);
      const Tensor y = sum(mul(hidden, b), {0});  // db = a · x
      sharded.require(0);
      backward(y, sharded.options());
      sharded.finish();
    }
    sgd.step(0.5);
    sharded.end_step();
    const auto whole = [&](const char* name) { return sharded.gathered(*sharded.find(name), sharded.find(name)->piece).to_vector<float>(); };
    check(whole("a") == std::vector<float>{1 - 4, 2 - 5, 3 - 6}, "a - 0.5 · 2 · b");
    check(whole("b") == std::vector<float>{4 - 1, 5 - 2, 6 - 3}, "b - 0.5 · 2 · a");
  });
}

TEST_CASE("sharded: a parameter that shares its bytes, or is away with nobody knowing its values, is refused") {
  const Device device = Device::new_cpu();
  const std::unique_ptr<ProcessGroup> alone = single_group(device);
  const Tensor both = zeros({8}, DType::f32, device), half(both.storage(), device, DType::f32, {4}, {1}, 0);
  set_requires_grad(half);
  CHECK_THROWS_WITH(Sharded(*alone, {{{"half", half}}}), Catch::Contains("'half' must be all of its storage"));
  const Tensor away = leaf(1, device);
  away.storage()->evict();
  CHECK_THROWS_WITH(Sharded(*alone, {{{"away", away}}}), Catch::Contains("'away' is away, and nobody has its values"));
}
