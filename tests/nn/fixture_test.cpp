// Single layers against PyTorch's numbers (tests/fixtures/make_layers.py), to 1e-5 of the largest value.
#include <refrain/nn/attention.h>
#include <refrain/nn/convolution.h>
#include <refrain/nn/embedding.h>
#include <refrain/nn/norm.h>
#include <refrain/nn/patch_embedding.h>

#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>

#include <vector>

using namespace refrain;

namespace {

constexpr double kTolerance = 1e-5;

const std::map<std::string, fixture::Entry>& expected() {
  static const auto entries = fixture::read("layers.txt");
  return entries;
}

double distance(const std::string& name, const Tensor& got) {
  INFO(name);
  REQUIRE(expected().count(name) == 1);
  return fixture::distance(got, expected().at(name));
}

// An input of a case, wanting a gradient.
Tensor input(const std::string& name, const Shape& shape, double scale = 1, double offset = 0) {
  const Tensor t = fixture::values(name, shape, scale, offset);
  set_requires_grad(t);
  return t;
}

void fill(const Tensor& parameter, const std::string& name, double scale = 1, double offset = 0) {
  copy_values(parameter, fixture::values(name, parameter.shape(), scale, offset));
}

// Checks the output, goes back from the case's output gradient and checks the inputs' gradients.
void check_case(const std::string& name, const Tensor& out, const std::vector<NamedTensor>& inputs) {
  INFO(name);
  CHECK(distance(name + ".out", out) < kTolerance);
  backward(out, {.grad_out = fixture::values(name + ".grad_out", out.shape())});
  for (const NamedTensor& t : inputs) {
    INFO(t.name);
    CHECK(distance(name + ".grad_" + t.name, grad_of(t.tensor)) < kTolerance);
  }
}

void check_attention(const std::string& name, bool causal, const Tensor& key_mask) {
  const MultiHeadAttention layer(12, 3, {.causal = causal});
  fill(layer.qkv->weight, name + ".qkv.weight", 0.5);
  fill(layer.qkv->bias, name + ".qkv.bias", 0.25);
  fill(layer.proj->weight, name + ".proj.weight", 0.5);
  fill(layer.proj->bias, name + ".proj.bias", 0.25);
  const Tensor x = input(name + ".x", {2, 7, 12});
  std::vector<NamedTensor> inputs = layer.named_parameters();
  inputs.push_back({"x", x});
  check_case(name, layer(x, key_mask), inputs);
}

void check_cross_entropy(const std::string& name, const CrossEntropyOptions& options) {
  const Tensor logits = input(name + ".logits", {6, 11}, 4), targets = fixture::integers(name + ".targets", {6}, 11);
  targets.data<std::int64_t>()[2] = targets.data<std::int64_t>()[4] = -100;
  check_case(name, cross_entropy(logits, targets, options), {{"logits", logits}});
}

}  // namespace

TEST_CASE("layers: linear equals PyTorch's", "[fixture]") {
  const Linear layer(8, 6);
  fill(layer.weight, "linear.weight");
  fill(layer.bias, "linear.bias");
  const Tensor x = input("linear.x", {3, 5, 8});
  check_case("linear", layer(x), {{"x", x}, {"weight", layer.weight}, {"bias", layer.bias}});
}

TEST_CASE("layers: layer_norm equals PyTorch's", "[fixture]") {
  const LayerNorm layer(33);
  fill(layer.weight, "layer_norm.weight", 0.5, 1);
  fill(layer.bias, "layer_norm.bias");
  const Tensor x = input("layer_norm.x", {4, 33}, 2, 0.5);
  check_case("layer_norm", layer(x), {{"x", x}, {"weight", layer.weight}, {"bias", layer.bias}});
}

TEST_CASE("layers: both forms of gelu equal PyTorch's", "[fixture]") {
  const Tensor x = input("gelu_erf.x", {5, 31}, 4);
  check_case("gelu_erf", gelu(x, GeluForm::erf), {{"x", x}});
  const Tensor y = input("gelu_tanh.x", {5, 31}, 4);
  check_case("gelu_tanh", gelu(y, GeluForm::tanh), {{"x", y}});
}

TEST_CASE("layers: attention, causal and with padding, equals PyTorch's MultiheadAttention", "[fixture]") {
  check_attention("attention", false, {});
  check_attention("attention_causal", true, {});
  std::vector<std::uint8_t> seen(14, 1);
  for (std::size_t i = 11; i < 14; ++i) seen[i] = 0;
  check_attention("attention_masked", false, from_values(seen, {2, 7}));
}

TEST_CASE("layers: cross_entropy with smoothing, ignored targets and every reduction equals PyTorch's", "[fixture]") {
  check_cross_entropy("cross_entropy", {});
  check_cross_entropy("cross_entropy_smoothed", {.label_smoothing = 0.1});
  check_cross_entropy("cross_entropy_sum", {.label_smoothing = 0.25, .reduction = Reduction::sum});
  check_cross_entropy("cross_entropy_none", {.reduction = Reduction::none});
}

TEST_CASE("layers: conv2d with stride and padding equals PyTorch's", "[fixture]") {
  const Conv2d layer(3, 4, 3, {.stride = 2, .padding = 1});
  fill(layer.weight, "conv2d.weight");
  fill(layer.bias, "conv2d.bias");
  const Tensor x = input("conv2d.x", {2, 3, 9, 8});
  check_case("conv2d", layer(x), {{"x", x}, {"weight", layer.weight}, {"bias", layer.bias}});
}

TEST_CASE("layers: patch embedding equals PyTorch's convolution, flattened", "[fixture]") {
  const PatchEmbedding layer(3, 5, 4);
  fill(layer.weight, "patch_embedding.weight");
  fill(layer.bias, "patch_embedding.bias");
  const Tensor x = input("patch_embedding.x", {2, 3, 8, 12});
  check_case("patch_embedding", layer(x), {{"x", x}, {"weight", layer.weight}, {"bias", layer.bias}});
}

TEST_CASE("layers: embedding equals PyTorch's, rows used twice included", "[fixture]") {
  const Embedding layer(9, 5);
  fill(layer.weight, "embedding.weight");
  check_case("embedding", layer(fixture::integers("embedding.indices", {4, 6}, 7)), {{"weight", layer.weight}});
}

TEST_CASE("layers: batch norm in training equals PyTorch's, running statistics included", "[fixture]") {
  const BatchNorm2d layer(3);
  fill(layer.weight, "batch_norm.weight", 0.5, 1);
  fill(layer.bias, "batch_norm.bias");
  const Tensor x = input("batch_norm.x", {4, 3, 5, 2}, 2, 1);
  check_case("batch_norm", layer(x), {{"x", x}, {"weight", layer.weight}, {"bias", layer.bias}});
  CHECK(distance("batch_norm.running_mean", layer.running_mean) < kTolerance);
  CHECK(distance("batch_norm.running_var", layer.running_var) < kTolerance);
}
