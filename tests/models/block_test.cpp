#include <refrain/models/block.h>

#include <refrain/autograd/tape.h>
#include <refrain/core/parallel.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <vector>

using namespace refrain;

namespace {

BlockOptions options(bool causal) {
  return {.width = 6,
          .hidden = 5,
          .num_heads = 2,
          .attention = {.causal = causal},
          .mlp = {.gelu = causal ? GeluForm::tanh : GeluForm::erf}};
}

std::vector<Tensor*> parameters_of(const Block& block) {
  return {&block.norm1->weight,           &block.norm1->bias,           &block.attention->qkv->weight, &block.attention->qkv->bias,
          &block.attention->proj->weight, &block.attention->proj->bias, &block.norm2->weight,          &block.norm2->bias,
          &block.mlp->fc1->weight,        &block.mlp->fc1->bias,        &block.mlp->fc2->weight,       &block.mlp->fc2->bias};
}

}  // namespace

TEST_CASE("block: gradients of the input and every parameter are those of differences", "[block]") {
  const CreationScope scope({.dtype = DType::f64});
  for (const bool causal : {false, true}) {
    Block block(options(causal));
    const std::vector<Tensor*> parameters = parameters_of(block);
    REQUIRE(parameters.size() == block.named_parameters().size());
    std::vector<Tensor> inputs{testing::test_values({2, 3, 6}, DType::f64, 1)};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      inputs.push_back(testing::test_values(parameters[i]->shape(), DType::f64, int(i) + 2));
    }
    testing::gradcheck(
        [&](const std::vector<Tensor>& given) {
          for (std::size_t i = 0; i < parameters.size(); ++i) *parameters[i] = given[i + 1];
          return block.forward(given[0], {});
        },
        inputs);
  }
}

TEST_CASE("block: padded keys change nothing that is seen", "[block]") {
  const CreationScope scope({});
  Block block(options(false));
  const Tensor mask = from_values(std::vector<std::uint8_t>{1, 1, 0}, {1, 3});
  const auto seen = [&](float padding) {
    std::vector<float> values(18, padding);
    for (std::size_t i = 0; i < 12; ++i) values[i] = float(i) / 8;
    const auto out = block.forward(from_values(values, {1, 3, 6}), {.key_mask = mask}).to_vector<float>();
    return std::vector<float>(out.begin(), out.begin() + 12);
  };
  CHECK(seen(0) == seen(5));
}
