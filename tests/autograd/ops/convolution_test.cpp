#include <refrain/autograd/ops/convolution.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using refrain::testing::gradcheck;
using refrain::testing::test_values;

namespace {

auto conv_of(std::int64_t stride, std::int64_t padding) {
  return [=](std::vector<Tensor> in) { return conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), stride, padding); };
}

Tensor patches_of(std::vector<Tensor> in) { return patch_embedding(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); }

}  // namespace

TEST_CASE("conv2d: gradients of x, weight and bias equal differences") {
  struct Case {
    Shape x, weight;
    std::int64_t stride, padding;
  };
  const std::vector<Case> cases = {{{1, 1, 1, 1}, {1, 1, 1, 1}, 1, 0}, {{2, 3, 5, 4}, {4, 3, 3, 3}, 1, 1},
                                   {{2, 2, 7, 6}, {3, 2, 3, 2}, 2, 1}, {{1, 2, 5, 5}, {3, 2, 2, 2}, 3, 0},
                                   {{2, 1, 3, 3}, {2, 1, 3, 3}, 1, 3}, {{0, 2, 4, 4}, {3, 2, 3, 3}, 1, 1},
                                   {{3, 2, 4, 4}, {2, 2, 1, 1}, 1, 0}, {{1, 1, 2, 9}, {1, 1, 1, 5}, 2, 4}};
  for (const Case& c : cases) {
    const Tensor x = test_values(c.x, DType::f64, 1), weight = test_values(c.weight, DType::f64, 2),
                 bias = test_values({c.weight[0]}, DType::f64, 3);
    gradcheck(conv_of(c.stride, c.padding), {x, weight, bias});
    gradcheck(conv_of(c.stride, c.padding), {x, weight});
  }
}

TEST_CASE("conv2d: strided inputs give the same gradients") {
  const Tensor x = view::permute(test_values({2, 5, 4, 3}, DType::f64, 1), {0, 3, 1, 2});  // channels last in memory
  gradcheck(conv_of(1, 1), {x, test_values({2, 3, 3, 3}, DType::f64, 2), test_values({2}, DType::f64, 3)});
}

TEST_CASE("patch_embedding: gradients of x, weight and bias equal differences") {
  const std::vector<std::pair<Shape, Shape>> cases = {{{1, 1, 1, 1}, {1, 1, 1, 1}},
                                                      {{2, 3, 4, 6}, {5, 3, 2, 3}},
                                                      {{3, 1, 4, 4}, {2, 1, 4, 4}},
                                                      {{0, 3, 4, 4}, {5, 3, 2, 2}},
                                                      {{2, 2, 6, 2}, {33, 2, 2, 2}}};
  for (const auto& [x, weight] : cases) {
    gradcheck(patches_of, {test_values(x, DType::f64, 1), test_values(weight, DType::f64, 2), test_values({weight[0]}, DType::f64, 3)});
    gradcheck(patches_of, {test_values(x, DType::f64, 1), test_values(weight, DType::f64, 2)});
  }
}

TEST_CASE("patch_embedding: equals conv2d with the patch as stride") {
  const Tensor x = random_tensor({2, 3, 12, 8}, DType::f64, 1), weight = random_tensor({7, 3, 4, 4}, DType::f64, 2),
               bias = random_tensor({7}, DType::f64, 3);
  const Tensor patches = patch_embedding(x, weight, bias), conv = conv2d(x, weight, bias, 4);
  const Tensor rows = view::permute(conv, {0, 2, 3, 1});  // [B, Y, X, O]
  CHECK(error_against(patches, rows.to_vector<double>()) < 1e-14);
}

TEST_CASE("convolution: refuses shapes that do not fit") {
  const Tensor x = test_values({2, 3, 6, 6});
  CHECK_THROWS_AS(conv2d(x, test_values({4, 2, 3, 3})), InvalidArgument);
  CHECK_THROWS_AS(conv2d(x, test_values({4, 3, 7, 7})), InvalidArgument);
  CHECK_THROWS_AS(conv2d(x, test_values({4, 3, 3, 3}), Tensor(), 0), InvalidArgument);
  CHECK_THROWS_AS(conv2d(x, test_values({4, 3, 3, 3}), Tensor(), 1, -1), InvalidArgument);
  CHECK_THROWS_AS(conv2d(x, test_values({4, 3, 3, 3}), test_values({3})), InvalidArgument);
  CHECK_THROWS_AS(patch_embedding(x, test_values({4, 3, 4, 4})), InvalidArgument);
  CHECK_THROWS_AS(patch_embedding(x, test_values({4, 2, 3, 3})), InvalidArgument);
}
