// Small cases of sharded parameters with values known by arithmetic.
#include <refrain/autograd/ops/all.h>
#include <refrain/dist/sharded.h>
#include <refrain/optim/adam.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/optim/sgd.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>

#include <cmath>

using namespace refrain;
using refrain::testing::run_ranks;

namespace {

Tensor leaf(const std::vector<float>& values, const Device& device) {
  const Tensor t = from_values(values, {std::int64_t(values.size())}, device);
  set_requires_grad(t);
  return t;
}

std::vector<float> ramp(std::int64_t size, float start) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(start + 0.25f * float(i));
  return values;
}

std::vector<float> whole(Sharded& sharded, const char* name) {
  const Sharded::Shard* shard = sharded.find(name);
  return sharded.gathered(*shard, shard->piece.without_autograd()).to_vector<float>();
}

constexpr ShardLevel kLevels[] = {ShardLevel::full, ShardLevel::gradients, ShardLevel::optimizer};

}  // namespace

TEST_CASE("sharded: ranks that start from different values all go on with rank 0's") {
  for (const ShardLevel level : kLevels) {
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const Tensor w = leaf(std::vector<float>(5, float(group->rank() + 1)), group->device());
      Sharded sharded(*group, {{{"w", w}}}, {.level = level});
      check(whole(sharded, "w") == std::vector<float>(5, 1), "w is not rank 0's");
    });
  }
}

TEST_CASE("sharded: parameters of 1, 5, 6 and 7 elements on 4 ranks, three steps of AdamW, values and moments as on one") {
  const std::vector<std::int64_t> sizes{1, 5, 6, 7};
  const auto train = [&](const std::shared_ptr<ProcessGroup>& group, ShardLevel level) {
    std::vector<NamedTensor> named;
    for (const std::int64_t size : sizes) named.push_back({"p" + std::to_string(size), leaf(ramp(size, float(size)), group->device())});
    Sharded sharded(*group, {{named[0], named[1]}, {named[2], named[3]}}, {.level = level});
    AdamW optimizer(sharded.pieces_of(make_groups(named, 0.1)));
    double norm = 0;
    for (int step = 0; step < 3; ++step) {
      {
        const Sharded::Pass pass(sharded, "step");
        Tensor loss;
        for (std::uint32_t stage = 0; stage < 2; ++stage) {
          sharded.enter(stage);
          for (std::size_t i = 2 * stage; i < 2 * stage + 2; ++i) {
            const Tensor part = sum(mul(named[i].tensor, named[i].tensor), {0});  // d = 2 p
            loss = loss.defined() ? loss + part : part;
          }
        }
        sharded.require(0);
        backward(loss, sharded.options());
        sharded.finish();
      }
      std::vector<Tensor> pieces;
      for (const Sharded::Shard& shard : sharded.shards()) pieces.push_back(shard.piece);
      norm = global_grad_norm(pieces);
      optimizer.step(0.01);
      optimizer.zero_grad();
      sharded.end_step();
    }
    std::vector<std::vector<float>> result{{float(norm)}};
    for (const NamedTensor& entry : named) {
      result.push_back(whole(sharded, entry.name.c_str()));
      for (const NamedTensor& state : optimizer.state_dict().tensors) {
        if (state.name.starts_with(entry.name + ".")) result.push_back(sharded.gathered(*sharded.find(entry.name), state.tensor).to_vector<float>());
      }
    }
    return result;
  };
  const std::vector<std::vector<float>> alone = train(single_group(Device::new_cpu()), ShardLevel::full);
  REQUIRE(alone.size() == 13);
  for (const ShardLevel level : kLevels) {
    std::vector<double> squares(4);
    run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& group) {
      const std::vector<std::vector<float>> result = train(group, level);
      for (std::size_t i = 1; i < alone.size(); ++i) check(result[i] == alone[i], "tensor ", i, " differs");
      squares[std::size_t(group->rank())] = double(result[0][0]) * double(result[0][0]);
    });
    // What lies between pieces is in no norm.
    CHECK(std::sqrt(squares[0] + squares[1] + squares[2] + squares[3]) == Approx(alone[0][0]).epsilon(1e-6));
  }
}

TEST_CASE("sharded: a frozen and a trained weight in one stage: one keeps its bits and has no state, the other trains as alone") {
  const auto train = [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor frozen = leaf(ramp(32, -3), group->device()), trained = leaf(ramp(32, 1), group->device());
    set_requires_grad(frozen, false);
    const std::vector<NamedTensor> named{{"frozen", frozen}, {"trained", trained}};
    Sharded sharded(*group, {named});
    Sgd optimizer(sharded.pieces_of(make_groups(named, 0.1)), {.momentum = 0.9});
    for (int step = 0; step < 5; ++step) {
      {
        const Sharded::Pass pass(sharded, "step");
        sharded.enter(0);
        backward(sum(mul(mul(frozen, trained), trained), {0}), sharded.options());
        sharded.finish();
      }
      optimizer.step(0.01);
      optimizer.zero_grad();
      sharded.end_step();
    }
    check(optimizer.state_dict().tensors.size() == 1, "expected state of one parameter");
    check(whole(sharded, "frozen") == ramp(32, -3), "the frozen weight has changed");
    return whole(sharded, "trained");
  };
  const std::vector<float> alone = train(single_group(Device::new_cpu()));
  CHECK(alone != ramp(32, 1));
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) { check(train(group) == alone, "trained differs"); });
}

TEST_CASE("sharded: a parameter used on one rank counts as zero on the other, one that nobody uses stays as it is: 1, 2, none") {
  for (const ShardLevel level : kLevels) {
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const Tensor a = leaf({1, 1}, group->device()), b = leaf({1, 1}, group->device()), c = leaf({1, 1}, group->device());
      const std::vector<NamedTensor> named{{"a", a}, {"b", b}, {"c", c}};
      Sharded sharded(*group, {named}, {.level = level});
      const std::vector<std::string> none;
      std::vector<ParameterGroup> groups{{.parameters = {a, b, c}, .names = {"a", "b", "c"}, .weight_decay = 0.1}};
      Sgd sgd(sharded.pieces_of(std::move(groups)));
      for (int step = 0; step < 2; ++step) {
        {
          const Sharded::Pass pass(sharded, "step");
          sharded.enter(0);
          backward(sum(group->rank() == 0 ? mul(a, 2) : mul(b, 4), {0}), sharded.options());
          sharded.finish();
        }
        check(grad_of(sharded.find("a")->piece).to_vector<float>() == std::vector<float>{1}, "the gradient of a");
        check(grad_of(sharded.find("b")->piece).to_vector<float>() == std::vector<float>{2}, "the gradient of b");
        check(!grad_of(sharded.find("c")->piece).defined(), "c has a gradient");
        sgd.step(0.1);
        sgd.zero_grad();
        sharded.end_step();
      }
      check(whole(sharded, "c") == std::vector<float>{1, 1}, "c has changed");
      check(whole(sharded, "a") != std::vector<float>({1, 1}), "a has not changed");
    });
  }
}

TEST_CASE("sharded: two ranks whose pieces have gradients 3 and 4 clip by 5") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor w = leaf({0, 0}, group->device());
    Sharded sharded(*group, {{{"w", w}}}, {.op = ReduceOp::sum});
    {
      const Sharded::Pass pass(sharded, "step");
      sharded.enter(0);
      const Tensor x = from_values<float>(std::vector<float>{1.5f, 2}, {2}, group->device());
      backward(sum(mul(w, x), {0}), sharded.options());
      sharded.finish();
    }
    const GradNorm norm = sharded.grad_norm();
    check(norm.norm == 5 && norm.is_finite(), "the norm is ", norm.norm);
    Sgd sgd({ParameterGroup{.parameters = {sharded.find("w")->piece}, .names = {"w"}}});
    sgd.step(1, clip_factor(norm.norm, 1));
    const std::vector<float> values = whole(sharded, "w");
    check(std::abs(values[0] + 0.6f) < 1e-6f && std::abs(values[1] + 0.8f) < 1e-6f, "w is ", values[0], ", ", values[1]);
  });
}

TEST_CASE("sharded: a gradient that is not finite in one rank's piece is known to all, by the parameter's number") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor a = leaf({1, 1}, group->device()), b = leaf({1, 1}, group->device());
    Sharded sharded(*group, {{{"a", a}, {"b", b}}});
    {
      const Sharded::Pass pass(sharded, "step");
      sharded.enter(0);
      const Tensor x = from_values<float>(std::vector<float>{1, INFINITY}, {2}, group->device());
      backward(sum(mul(b, x), {0}), sharded.options());
      sharded.finish();
    }
    check(sharded.grad_norm().first_non_finite == 1, "expected parameter 1");
  });
}
