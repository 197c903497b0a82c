#include <refrain/autograd/ops/concat.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <array>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("concat: gradients along every dim, for views and sizes 0 and 1") {
  for (int dim = -2; dim < 2; ++dim) {
    std::vector<Tensor> parts;
    for (std::int64_t extent : {2, 0, 1, 5})
      parts.push_back(test_values(dim == 0 || dim == -2 ? Shape{extent, 3} : Shape{3, extent}, DType::f64, int(extent)));
    parts.push_back(view::transpose(test_values({3, 3}, DType::f64, 9), 0, 1));
    gradcheck([&](const std::vector<Tensor>& v) { return concat(v, dim); }, parts);
  }
  gradcheck([](std::vector<Tensor> v) { return concat({v[0], v[0]}, 0); }, {test_values({3})});
}

TEST_CASE("concat: a class token expanded over the batch gets the batch's summed gradient") {
  gradcheck(
      [](std::vector<Tensor> v) {
        const std::array<Tensor, 2> tokens{expand(v[0], {4, 1, 3}), v[1]};
        return concat(tokens, 1);
      },
      {test_values({1, 1, 3}), test_values({4, 5, 3}, DType::f64, 1)});
}

TEST_CASE("concat: values, and inputs that need no gradient") {
  const Tensor a = from_values(std::vector<float>{1, 2}, {2}), b = from_values(std::vector<float>{3}, {1});
  CHECK(concat({a, b}, 0).to_vector<double>() == std::vector<double>{1, 2, 3});
  set_requires_grad(b);
  backward(concat({a, b}, 0), {.grad_out = from_values(std::vector<float>{5, 6, 7}, {3})});
  CHECK_FALSE(grad_of(a).defined());
  CHECK(grad_of(b).to_vector<double>() == std::vector<double>{7});
  CHECK(concat({full({2}, 3, DType::i64), full({1}, 4, DType::i64)}, 0).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 3, 4});
  CHECK_THROWS_AS(concat(std::vector<Tensor>{}, 0), InvalidArgument);
  CHECK_THROWS_AS(concat({a, zeros({1, 2}, DType::f32)}, 0), InvalidArgument);
  CHECK_THROWS_AS(concat({a, a}, 1), InvalidArgument);
}
