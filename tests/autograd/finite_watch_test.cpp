#include <refrain/autograd/all.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <limits>

using namespace refrain;

namespace {

Tensor leaf(std::vector<float> values) {
  const Tensor t = from_values<float>(values, {std::int64_t(values.size())});
  set_requires_grad(t);
  return t;
}

}  // namespace

TEST_CASE("finite watch: the first op whose result is not finite is named, with module and input ranges") {
  const Tensor x = leaf({1, 200, -3});
  FiniteWatch watch;
  Tensor y;
  {
    const ModuleScope module("blocks.3.mlp");
    y = exp(x * 2.0);
  }
  backward(sum(y - y));
  REQUIRE(watch.finding());
  CHECK(watch.finding()->op == "exp");
  CHECK(watch.finding()->module == "blocks.3.mlp");
  CHECK(watch.finding()->phase == Phase::forward);
  CHECK(watch.finding()->result.num_non_finite == 1);
  REQUIRE(watch.finding()->inputs.size() == 1);
  CHECK(watch.finding()->inputs[0].least == -6);
  CHECK(watch.finding()->inputs[0].greatest == 400);
  const std::string text = to_text(*watch.finding());
  CHECK(text.find("exp in module 'blocks.3.mlp', forward: output f32 [3]") == 0);
  CHECK(text.find("from input 0 f32 [3] in [-6, 400]") != std::string::npos);
}

TEST_CASE("finite watch: a gradient that is not finite is named by the op whose backward made it, inside a region as well") {
  for (const bool in_region : {false, true}) {
    const Tensor x = leaf({4, 0, 9});
    FiniteWatch watch;
    const auto block = [](const Tensor& t) {
      const ModuleScope module("root");
      return sqrt(t) * 3.0;
    };
    backward(sum(in_region ? checkpoint(block, x) : block(x)));
    REQUIRE(watch.finding());
    CHECK(watch.finding()->op == "sqrt");
    CHECK(watch.finding()->module == "root");
    CHECK(watch.finding()->phase == Phase::backward);
    CHECK(watch.finding()->inputs[0].greatest == 3);
  }
}

TEST_CASE("finite watch: a sum of finite gradients that overflows is found") {
  const Tensor x = leaf({0});
  FiniteWatch watch;
  backward(sum(x * 3e38 + x * 3e38));
  REQUIRE(watch.finding());
  CHECK(watch.finding()->op == "sum of gradients");
}

TEST_CASE("finite watch: masks of -inf are passed over, infinities from outside are told by the first op that read them") {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = leaf({1, 2, 3}), mask = from_values<float>(std::vector<float>{0, 0, -infinity}, {3});
  {
    FiniteWatch watch;
    const Tensor p = softmax(x + mask, 0);
    CHECK(watch.finding()->op == "add");  // all there is so far
    p * 3e38 * 3e38;
    CHECK(watch.finding()->op == "mul");
    CHECK(watch.finding()->inputs[0].num_non_finite == 0);
  }
  FiniteWatch watch;
  neg(relu(mask * -1.0));
  REQUIRE(watch.finding());
  CHECK(watch.finding()->op == "mul");
  CHECK(watch.finding()->inputs[0].num_non_finite == 1);
}

TEST_CASE("finite watch: finite steps leave no finding, and a watch ends with its scope") {
  const Tensor x = leaf({1, 2});
  {
    FiniteWatch watch;
    backward(sum(exp(x)));
    CHECK(!watch.finding());
  }
  FiniteWatch outer;
  {
    FiniteWatch inner;
    log(x * -1.0);
    CHECK(inner.finding());
  }
  CHECK(!outer.finding());
  log(x * 0.0);
  REQUIRE(outer.finding());
  CHECK(outer.finding()->op == "log");
}
