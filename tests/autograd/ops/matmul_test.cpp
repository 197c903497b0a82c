#include <refrain/autograd/ops/matmul.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using refrain::testing::gradcheck;
using refrain::testing::test_values;

namespace {

Tensor matmul_of(std::vector<Tensor> in) { return matmul(in[0], in[1]); }

}  // namespace

TEST_CASE("matmul: gradients equal differences for 2 dims, batches and broadcast batches") {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{1, 1}, {1, 1}},       {{3, 4}, {4, 5}},          {{0, 4}, {4, 5}},          {{3, 0}, {0, 5}},    {{3, 4}, {4, 0}},
      {{33, 7}, {7, 31}},     {{2, 3, 4}, {2, 4, 5}},    {{2, 3, 4}, {4, 5}},       {{3, 4}, {2, 4, 5}}, {{2, 1, 3, 4}, {1, 3, 4, 2}},
      {{1, 3, 4}, {2, 4, 1}}, {{2, 2, 3, 4}, {2, 4, 3}}, {{0, 3, 4}, {0, 4, 5}},    {{0, 3, 4}, {4, 5}},
  };
  for (const auto& [a, b] : cases) gradcheck(matmul_of, {test_values(a, DType::f64, 1), test_values(b, DType::f64, 2)});
}

TEST_CASE("matmul: transposed, sliced and permuted inputs give the same gradients") {
  const Tensor a = view::transpose(test_values({4, 3}, DType::f64, 1), 0, 1);
  const Tensor b = view::slice(test_values({4, 9}, DType::f64, 2), 1, 2, 7);
  gradcheck(matmul_of, {a, b});
  gradcheck(matmul_of, {view::slice(test_values({6, 8}, DType::f64, 1), 1, 0, 8, 2), test_values({4, 3}, DType::f64, 2)});
  // Heads split out of [batch, tokens, heads, width]: the rows of a product are a slice away from each other.
  const Tensor q = view::permute(test_values({2, 5, 3, 4}, DType::f64, 3), {0, 2, 1, 3});
  const Tensor k = view::permute(test_values({2, 6, 3, 4}, DType::f64, 4), {0, 2, 3, 1});
  gradcheck(matmul_of, {q, k});
}

TEST_CASE("matmul: a batch broadcast over products equals the products one by one") {
  const Tensor a = random_tensor({3, 1, 25, 17}, DType::f32, 1), b = random_tensor({2, 17, 40}, DType::f32, 2);
  const Tensor out = matmul(a, b);
  REQUIRE(out.shape() == Shape{3, 2, 25, 40});
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 2; ++j) {
      const Tensor one = matmul(view::select(view::select(a, 0, i), 0, 0), view::select(b, 0, j));
      CHECK(same_bits(view::select(view::select(out, 0, i), 0, j), one));
    }
  }
}

TEST_CASE("matmul: bits are equal on 1, 2 and 4 threads") {
  CHECK(same_on_all_threads([] {
    return std::vector<Tensor>{matmul(random_tensor({64, 17, 16}, DType::f32, 1), random_tensor({64, 16, 17}, DType::f32, 2)),
                               matmul(random_tensor({300, 500}, DType::f32, 3), random_tensor({500, 700}, DType::f32, 4))};
  }));
}

TEST_CASE("matmul: refuses shapes and dtypes that do not fit") {
  CHECK_THROWS_AS(matmul(test_values({3}), test_values({3, 2})), InvalidArgument);
  CHECK_THROWS_AS(matmul(test_values({2, 3}), test_values({2, 3})), InvalidArgument);
  CHECK_THROWS_AS(matmul(test_values({2, 2, 3}), test_values({3, 3, 2})), InvalidArgument);
  CHECK_THROWS_AS(matmul(test_values({2, 3}), test_values({3, 2}, DType::f32)), InvalidArgument);
}
