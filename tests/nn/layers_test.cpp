#include <refrain/nn/attention.h>
#include <refrain/nn/dropout.h>
#include <refrain/nn/embedding.h>
#include <refrain/nn/mlp.h>
#include <refrain/nn/norm.h>
#include <refrain/nn/patch_embedding.h>

#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/nn/message.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>

using namespace refrain;

namespace {

double largest_difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  REQUIRE(x.size() == y.size());
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
  return largest;
}

}  // namespace

TEST_CASE("layers: dropout and stochastic depth do nothing in evaluation mode or with probability 0", "[layers]") {
  const Tensor x = fixture::values("x", {4, 8});
  Dropout dropout(0.5);
  StochasticDepth depth(0.5);
  CHECK_FALSE(is_same(dropout(x), x));
  dropout.eval();
  depth.eval();
  CHECK(is_same(dropout(x), x));
  CHECK(is_same(depth(x), x));
  CHECK(is_same(Dropout(0)(x), x));
  CHECK_THROWS_AS(Dropout(1), InvalidArgument);
  CHECK_THROWS_AS(StochasticDepth(-0.1), InvalidArgument);
}

TEST_CASE("layers: stochastic depth keeps or leaves out whole samples", "[layers]") {
  seed_random(3);
  const StochasticDepth depth(0.25);
  const Tensor y = depth(full({400, 3, 2}, 3, DType::f32));
  const auto values = y.to_vector<float>();
  int num_kept = 0;
  for (std::size_t sample = 0; sample < 400; ++sample) {
    const float first = values[sample * 6];
    CHECK((first == 0 || first == 4));
    CHECK(std::all_of(values.begin() + long(sample * 6), values.begin() + long(sample * 6 + 6), [&](float v) { return v == first; }));
    num_kept += first != 0;
  }
  CHECK(num_kept > 260);
  CHECK(num_kept < 340);
}

TEST_CASE("layers: three separate linears give what the packed one gives", "[layers]") {
  const std::int64_t width = 12;
  for (const bool causal : {false, true}) {
    const MultiHeadAttention packed(width, 3, {.causal = causal});
    const SeparateAttention separate(width, 3, {.causal = causal});
    int part = 0;
    for (const Linear* linear : {separate.query.get(), separate.key.get(), separate.value.get()}) {
      copy_values(linear->weight, view::slice(packed.qkv->weight, 0, part * width, (part + 1) * width));
      copy_values(linear->bias, view::slice(packed.qkv->bias, 0, part * width, (part + 1) * width));
      ++part;
    }
    copy_values(separate.proj->weight, packed.proj->weight);
    copy_values(separate.proj->bias, packed.proj->bias);
    const Tensor x = fixture::values("x", {2, 5, width}), y = fixture::values("x", {2, 5, width}), g = fixture::values("g", {2, 5, width});
    set_requires_grad(x);
    set_requires_grad(y);
    const Tensor from_packed = packed(x), from_separate = separate(y);
    CHECK(largest_difference(from_packed, from_separate) < 1e-6);
    backward(from_packed, {.grad_out = g});
    backward(from_separate, {.grad_out = g});
    CHECK(largest_difference(grad_of(x), grad_of(y)) < 1e-6);
    CHECK(largest_difference(view::slice(grad_of(packed.qkv->weight), 0, width, 2 * width), grad_of(separate.key->weight)) < 1e-6);
  }
  CHECK(contains(message_of([] { MultiHeadAttention(10, 3); }), "got 10 and 3"));
}

TEST_CASE("layers: attention weights are dropped in training mode only", "[layers]") {
  MultiHeadAttention attention(8, 2, {.dropout = 0.5});
  const Tensor x = fixture::values("x", {2, 6, 8});
  CHECK(largest_difference(attention(x), attention(x)) > 0);
  attention.eval();
  CHECK(largest_difference(attention(x), attention(x)) == 0);
}

TEST_CASE("layers: a table used as embedding and as head gets the sum of both gradients", "[layers]") {
  // Vocabulary 2, width 1, token 0, target 1: logits E·E[0] = [1, 2].
  struct Tied : Module {
    std::shared_ptr<Embedding> table = add<Embedding>("table", 2, 1);
    std::shared_ptr<Linear> head = add<Linear>("head", 1, 2, LinearOptions{.bias = false});
    Tied() { head->weight = table->weight; }
  } tied;
  copy_values(tied.table->weight, from_values(std::vector<float>{1, 2}, {2, 1}));
  const Tensor logits = (*tied.head)((*tied.table)(from_values(std::vector<std::int64_t>{0}, {1})));
  const Tensor loss = cross_entropy(logits, from_values(std::vector<std::int64_t>{1}, {1}), {});
  CHECK(loss.item() == Approx(0.31326166).epsilon(1e-6));
  backward(loss);
  const auto grad = grad_of(tied.table->weight).to_vector<double>();
  CHECK(std::abs(grad[0]) < 1e-6);
  CHECK(grad[1] == Approx(-0.26894142).epsilon(1e-6));
}

TEST_CASE("layers: batch norm's running statistics move once, checkpointed or not", "[layers]") {
  const Tensor x = fixture::values("x", {4, 3, 5, 2}, 2, 1);
  std::vector<std::vector<double>> means;
  for (const bool is_checkpointed : {false, true}) {
    const auto layer = std::make_shared<BatchNorm2d>(3);
    const Tensor y = is_checkpointed ? checkpoint([layer](const Tensor& t) { return (*layer)(t); }, x) : (*layer)(x);
    backward(sum(y * y));
    CHECK(grad_of(layer->weight).defined());
    means.push_back(layer->running_mean.to_vector<double>());
    means.push_back(layer->running_var.to_vector<double>());
  }
  CHECK(means[0] == means[2]);
  CHECK(means[1] == means[3]);
  CHECK(means[0][0] != 0);
}

TEST_CASE("layers: batch norm in evaluation mode uses the running statistics and leaves them", "[layers]") {
  BatchNorm2d layer(2);
  copy_values(layer.running_mean, from_values(std::vector<float>{1, -1}, {2}));
  copy_values(layer.running_var, from_values(std::vector<float>{4, 0.25}, {2}));
  layer.eval();
  const Tensor y = layer(from_values(std::vector<float>{3, 0}, {1, 2, 1, 1}));
  const auto values = y.to_vector<double>();
  CHECK(values[0] == Approx(1).epsilon(1e-5));
  CHECK(values[1] == Approx(2).epsilon(1e-4));
  CHECK(layer.running_mean.to_vector<float>() == std::vector<float>{1, -1});
}

TEST_CASE("layers: one value per channel is refused by batch norm in training and fine for layer norm", "[layers]") {
  const BatchNorm2d batch_norm(3);
  const Tensor x = fixture::values("x", {1, 3, 1, 1});
  CHECK_THROWS_AS(batch_norm(x), InvalidArgument);
  CHECK(batch_norm.running_mean.to_vector<float>() == std::vector<float>{0, 0, 0});
  const auto y = LayerNorm(3)(view::reshape(x, {1, 3})).to_vector<double>();
  CHECK(std::all_of(y.begin(), y.end(), [](double v) { return std::isfinite(v); }));
}

TEST_CASE("layers: the mlp is linear, gelu, linear", "[layers]") {
  const Mlp mlp(6, 9, {.gelu = GeluForm::tanh});
  const Tensor x = fixture::values("x", {2, 3, 6});
  const Tensor expected = (*mlp.fc2)(gelu((*mlp.fc1)(x), GeluForm::tanh));
  CHECK(mlp(x).shape() == x.shape());
  CHECK(largest_difference(mlp(x), expected) == 0);
}

TEST_CASE("layers: wrong widths are refused with op, expectation and reality", "[layers]") {
  const Linear linear(4, 2);
  const std::string message = message_of([&] { linear(fixture::values("x", {3, 5})); });
  CHECK(contains(message, "linear"));
  CHECK(contains(message, "5"));
  const PatchEmbedding patch(3, 8, 4);
  CHECK_FALSE(message_of([&] { patch(fixture::values("x", {1, 3, 10, 8})); }).empty());
}
