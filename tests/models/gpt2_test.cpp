#include <refrain/models/gpt2.h>

#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/nn/message.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>

using namespace refrain;

namespace {

Gpt2Config tiny() {
  return {.vocabulary = 11, .context = 8, .width = 16, .depth = 2, .num_heads = 2, .dropout = 0, .attention_dropout = 0};
}

std::int64_t count_parameters(const Gpt2Config& config) {
  const CreationScope scope({.device = Device::plan()});
  return Gpt2(config).num_parameters();
}

double deviation(const Tensor& t) {
  double sum = 0;
  for (const double v : t.to_vector<double>()) sum += v * v;
  return std::sqrt(sum / double(t.numel()));
}

}  // namespace

TEST_CASE("gpt2: published sizes have their published numbers of parameters, the tied weight counted once", "[gpt2]") {
  CHECK(count_parameters(gpt2_config("gpt2")) == 124439808);
  CHECK(count_parameters(gpt2_config("gpt2_medium")) == 354823168);
  CHECK(count_parameters(gpt2_config("gpt2_large")) == 774030080);
  CHECK(count_parameters(gpt2_config("gpt2_xl")) == 1557611200);
  CHECK(contains(message_of([] { gpt2_config("gpt3"); }), "gpt3"));
}

TEST_CASE("gpt2: the head shares the token embedding's bytes", "[gpt2]") {
  const Gpt2 model(tiny());
  CHECK(model.head->weight.storage() == model.embed->token->weight.storage());
  const auto parameters = model.named_parameters();
  CHECK(std::none_of(parameters.begin(), parameters.end(), [](const NamedTensor& t) { return t.name == "head.weight"; }));
  CHECK(parameters[0].name == "embed.token.weight");
}

TEST_CASE("gpt2: the tied weight's gradient is the sum of its uses' gradients", "[gpt2]") {
  const CreationScope scope({.dtype = DType::f64});
  const Gpt2 model(tiny());
  const Tensor tokens = fixture::integers("tokens", {2, 6}, 11), targets = fixture::integers("targets", {2, 6}, 11);
  const Tensor token_weight = model.embed->token->weight;
  const auto gradient_of = [&](const Tensor& wanted) {
    backward(cross_entropy(model(tokens), targets, {}));
    const auto values = grad_of(wanted).to_vector<double>();
    for (const Tensor& t : model.parameters()) clear_grad(t);
    clear_grad(wanted);
    return values;
  };
  const auto both = gradient_of(token_weight);
  const Tensor copy = clone(token_weight);
  set_requires_grad(copy);
  model.head->weight = copy;
  const auto as_head = gradient_of(copy), as_embedding = gradient_of(token_weight);
  for (std::size_t i = 0; i < both.size(); ++i) CHECK(both[i] == Approx(as_head[i] + as_embedding[i]).margin(1e-13));
}

TEST_CASE("gpt2: logits of a token do not depend on the tokens after it", "[gpt2]") {
  const Gpt2 model(tiny());
  const auto first_rows = [&](std::vector<std::int64_t> tokens) {
    return slice(model(from_values(tokens, {1, 6})), 1, 0, 4).to_vector<float>();
  };
  CHECK(first_rows({1, 2, 3, 4, 5, 6}) == first_rows({1, 2, 3, 4, 0, 10}));
  CHECK(first_rows({1, 2, 3, 4, 5, 6}) != first_rows({1, 9, 3, 4, 5, 6}));
}

TEST_CASE("gpt2: shapes, and texts longer than the context are refused", "[gpt2]") {
  const Gpt2 model(tiny());
  CHECK(model(fixture::integers("tokens", {3, 8}, 11)).shape() == Shape{3, 8, 11});
  CHECK(contains(message_of([&] { model(fixture::integers("tokens", {1, 9}, 11)); }), "T <= 8, got [1, 9]"));
}

TEST_CASE("gpt2: initial values are normal 0.02, projections into the residual stream narrower with depth", "[gpt2]") {
  const CreationScope scope({});
  Gpt2Config config = gpt2_config("gpt2");
  config.vocabulary = 1000;
  config.depth = 2;
  config.width = 384;
  const Gpt2 model(config);
  CHECK(deviation(model.embed->token->weight) == Approx(0.02).epsilon(0.01));
  CHECK(deviation(model.embed->position->weight) == Approx(0.02).epsilon(0.01));
  CHECK(deviation(model.blocks[1]->attention->qkv->weight) == Approx(0.02).epsilon(0.01));
  CHECK(deviation(model.blocks[1]->attention->proj->weight) == Approx(0.01).epsilon(0.01));
  CHECK(deviation(model.blocks[1]->mlp->fc2->weight) == Approx(0.01).epsilon(0.01));
  CHECK(deviation(model.blocks[1]->mlp->fc1->bias) == 0);
}
