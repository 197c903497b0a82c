// Embedding as a differentiable op.
#include <refrain/autograd/ops/embedding.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using testing::gradcheck;
using testing::test_values;

TEST_CASE("embedding op: gradients match differences") {
  const Tensor indices = from_values(std::vector<std::int64_t>{2, 0, 2, 4, 2, 1}, {2, 3});
  for (std::int64_t width : {1, 3, 33}) {
    gradcheck([=](auto in) { return embedding(indices, in[0]); }, {test_values({5, width}, DType::f64, 1)});
  }
  gradcheck([=](auto in) { return embedding(view::transpose(indices, 0, 1), in[0]); },
            {view::transpose(test_values({3, 5}, DType::f64, 1), 0, 1)});
  gradcheck([](auto in) { return embedding(from_values(std::vector<std::int32_t>{}, {0}), in[0]); }, {test_values({5, 3}, DType::f64, 1)});
}

TEST_CASE("embedding op: the padding row gets no gradient, the others theirs") {
  const Tensor weight = test_values({3, 2}, DType::f32, 1);
  set_requires_grad(weight);
  backward(embedding(from_values(std::vector<std::int32_t>{0, 1, 0, 1}, {4}), weight, 1), {.grad_out = full({4, 2}, 1, DType::f32)});
  CHECK(grad_of(weight).to_vector<double>() == std::vector<double>{2, 2, 0, 0, 0, 0});
}

TEST_CASE("embedding op: wrong arguments are named") {
  const Tensor weight = zeros({3, 2}, DType::f32), indices = from_values(std::vector<std::int64_t>{0, 3}, {2});
  CHECK(message_of([&] { embedding(indices, weight); }) == "embedding: index 1 must be 0 … 2, got 3");
  CHECK(message_of([&] { embedding(indices, weight, 3); }) == "embedding: padding_idx must be 0 … 2, got 3");
  CHECK(message_of([&] { embedding(indices, zeros({3}, DType::f32)); }) == "embedding: weight must be [V, D], got [3]");
}
