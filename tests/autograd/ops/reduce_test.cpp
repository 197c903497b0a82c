#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <cmath>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("sum and mean: gradients over every set of dims, kept or not") {
  for (const Shape& shape : {Shape{3, 4, 5}, Shape{1, 3, 1}, Shape{2, 0, 3}}) {
    for (int mask = 0; mask < 8; ++mask) {
      Dims dims;
      for (int d = 0; d < 3; ++d) {
        if (mask >> d & 1) dims.push_back(d == 2 ? -1 : d);
      }
      for (bool keepdim : {false, true}) {
        INFO(shape << " over " << dims << (keepdim ? " kept" : ""));
        gradcheck([&](std::vector<Tensor> v) { return sum(v[0], dims, keepdim); }, {test_values(shape)});
        if (numel_of(shape) > 0) gradcheck([&](std::vector<Tensor> v) { return mean(v[0], dims, keepdim); }, {test_values(shape)});
      }
    }
  }
  gradcheck([](std::vector<Tensor> v) { return sum(v[0]); }, {view::transpose(test_values({3, 5}), 0, 1)});
  gradcheck([](std::vector<Tensor> v) { return mean(v[0]); }, {view::slice(test_values({9}), 0, 0, 9, 2)});
  gradcheck([](std::vector<Tensor> v) { return sum(v[0]); }, {test_values({})});
}

TEST_CASE("sum and mean: values and shapes") {
  const Tensor x = from_values(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(sum(x).shape() == Shape{});
  CHECK(sum(x).item() == 21);
  CHECK(mean(x).item() == 3.5);
  CHECK(sum(x, {0}).to_vector<double>() == std::vector<double>{5, 7, 9});
  CHECK(sum(x, {-1}, true).shape() == Shape{2, 1});
  CHECK(mean(x, {1}).to_vector<double>() == std::vector<double>{2, 5});
  CHECK(sum(zeros({0, 3}, DType::f32), {0}).to_vector<double>() == std::vector<double>{0, 0, 0});
  CHECK(std::isnan(mean(zeros({0}, DType::f32)).item()));
  CHECK_THROWS_AS(sum(x, {2}), InvalidArgument);
  CHECK_THROWS_AS(sum(x, {0, -2}), InvalidArgument);
}

TEST_CASE("max: gradient goes to the first largest element") {
  for (int dim = -2; dim < 2; ++dim) {
    for (bool keepdim : {false, true})
      gradcheck([&](std::vector<Tensor> v) { return max(v[0], dim, keepdim).values; }, {test_values({4, 7})});
  }
  gradcheck([](std::vector<Tensor> v) { return max(v[0], 0).values; }, {view::transpose(test_values({5, 3}), 0, 1)});
  const Tensor x = from_values(std::vector<double>{1, 3, 3, 2}, {4});
  set_requires_grad(x);
  const auto [values, indices] = max(x, 0);
  CHECK(indices.item() == 1);
  backward(values);
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>{0, 1, 0, 0});
  CHECK_THROWS_AS(max(zeros({3, 0}, DType::f32), 1), InvalidArgument);
}

TEST_CASE("sum_to: undoes a broadcast") {
  const Tensor grad = test_values({4, 3, 5});
  CHECK(is_same(sum_to(grad, {4, 3, 5}), grad));
  check_close(sum_to(grad, {3, 1}), sum(sum(grad, {0}), {-1}, true), 1e-14);
  check_close(sum_to(view::transpose(grad, 0, 2), {5, 3, 1}), sum(view::transpose(grad, 0, 2), {2}, true), 1e-14);
}

TEST_CASE("squared_norm: in double, also of views") {
  const Tensor x = test_values({6, 7}, DType::f32);
  double expected = 0;
  for (double v : x.to_vector<double>()) expected += v * v;
  CHECK(squared_norm(x).item() == Approx(expected).epsilon(1e-14));
  CHECK(squared_norm(view::transpose(x, 0, 1)).item() == Approx(expected).epsilon(1e-14));
}
