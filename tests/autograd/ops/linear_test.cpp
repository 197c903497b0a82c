#include <refrain/autograd/ops/linear.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using refrain::testing::gradcheck;
using refrain::testing::test_values;

namespace {

Tensor linear_of(std::vector<Tensor> in) { return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); }

}  // namespace

TEST_CASE("linear: gradients of x, weight and bias equal differences") {
  for (const Shape& x : {Shape{3}, Shape{1, 3}, Shape{5, 3}, Shape{2, 4, 3}, Shape{25, 3}, Shape{0, 3}, Shape{2, 0, 3}}) {
    for (std::int64_t out : {1, 4, 7}) {
      gradcheck(linear_of, {test_values(x, DType::f64, 1), test_values({out, 3}, DType::f64, 2), test_values({out}, DType::f64, 3)});
      gradcheck(linear_of, {test_values(x, DType::f64, 1), test_values({out, 3}, DType::f64, 2)});
    }
  }
  gradcheck(linear_of, {test_values({4, 0}), test_values({3, 0}), test_values({3})});
  gradcheck(linear_of, {test_values({4, 33}), test_values({31, 33}), test_values({31})});
}

TEST_CASE("linear: strided inputs give the same gradients") {
  gradcheck(linear_of,
            {view::transpose(test_values({3, 5}, DType::f64, 1), 0, 1), view::transpose(test_values({3, 4}, DType::f64, 2), 0, 1),
             view::slice(test_values({8}, DType::f64, 3), 0, 0, 8, 2)});
}

TEST_CASE("linear: equals a plain loop in f32") {
  const Tensor x = random_tensor({2, 33, 65}, DType::f32, 1), weight = random_tensor({100, 65}, DType::f32, 2),
               bias = random_tensor({100}, DType::f32, 3);
  const Tensor y = linear(x, weight, bias);
  REQUIRE(y.shape() == Shape{2, 33, 100});
  std::vector<double> expected;
  const std::vector<double> xs = x.to_vector<double>(), ws = weight.to_vector<double>(), bs = bias.to_vector<double>();
  for (std::size_t r = 0; r < 66; ++r) {
    for (std::size_t n = 0; n < 100; ++n) {
      double sum = bs[n];
      for (std::size_t k = 0; k < 65; ++k) sum += xs[r * 65 + k] * ws[n * 65 + k];
      expected.push_back(sum);
    }
  }
  CHECK(error_against(y, expected) < 1e-6);
}

TEST_CASE("linear: refuses shapes and dtypes that do not fit") {
  const Tensor x = test_values({2, 3}), weight = test_values({4, 3});
  CHECK_THROWS_AS(linear(x, test_values({4, 2})), InvalidArgument);
  CHECK_THROWS_AS(linear(x, test_values({3})), InvalidArgument);
  CHECK_THROWS_AS(linear(x, weight, test_values({3})), InvalidArgument);
  CHECK_THROWS_AS(linear(x, test_values({4, 3}, DType::f32)), InvalidArgument);
}
