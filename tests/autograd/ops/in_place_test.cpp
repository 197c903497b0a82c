#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/in_place.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("in place: values change, views too, and the version rises") {
  const Tensor t = from_values(std::vector<float>{-1, 2, -3, 4, -5, 6}, {2, 3});
  const std::uint64_t before = t.storage()->version();
  relu_(t);
  CHECK(t.to_vector<double>() == std::vector<double>{0, 2, 0, 4, 0, 6});
  add_(t, 1);
  mul_(t, from_values(std::vector<float>{1, 2, 3}, {3}));
  CHECK(t.to_vector<double>() == std::vector<double>{1, 6, 3, 5, 2, 21});
  add_(view::select(t, 0, 0), full({3}, 10, DType::f32));
  CHECK(t.to_vector<double>() == std::vector<double>{11, 16, 13, 5, 2, 21});
  mul_(view::transpose(t, 0, 1), 2);
  CHECK(t.to_vector<double>() == std::vector<double>{22, 32, 26, 10, 4, 42});
  copy_(view::slice(t, 1, 0, 2), full({2, 2}, 7, DType::i64));
  CHECK(t.to_vector<double>() == std::vector<double>{7, 7, 26, 7, 7, 42});
  fill_(view::select(t, 1, 2), 3);
  CHECK(t.to_vector<double>() == std::vector<double>{7, 7, 3, 7, 7, 3});
  zero_(t);
  CHECK(t.to_vector<double>() == std::vector<double>(6, 0.0));
  CHECK(t.storage()->version() == before + 8);
  CHECK_THROWS_AS(add_(t, zeros({4}, DType::f32)), InvalidArgument);
}

TEST_CASE("in place: a tensor that wants a gradient is refused, by the name of the op that would do") {
  const Tensor w = full({3}, 1, DType::f32), other = full({3}, 1, DType::f32);
  set_requires_grad(w);
  CHECK_THROWS_WITH(add_(w, 1), Catch::Contains("use add"));
  CHECK_THROWS_WITH(mul_(w, other), Catch::Contains("use mul"));
  CHECK_THROWS_WITH(relu_(w + other), Catch::Contains("use relu"));
  CHECK_THROWS_AS(fill_(w, 1), InvalidArgument);
  CHECK_THROWS_AS(zero_(w), InvalidArgument);
  CHECK_THROWS_AS(copy_(w, other), InvalidArgument);
  CHECK_THROWS_AS(add_(other, w), InvalidArgument);
  CHECK(w.to_vector<double>() == std::vector<double>{1, 1, 1});
  CHECK(other.to_vector<double>() == std::vector<double>{1, 1, 1});
  NoGradScope no_grad;
  add_(w, 1);
  CHECK(w.to_vector<double>() == std::vector<double>{2, 2, 2});
}

TEST_CASE("in place: bytes that backward will read are refused through any view") {
  const Tensor w = full({3}, 1, DType::f32), x = full({3}, 2, DType::f32);
  set_requires_grad(w);
  const Tensor y = w * x;  // saves x
  CHECK_THROWS_WITH(mul_(x, 2), Catch::Contains("backward will read"));
  CHECK_THROWS_AS(zero_(view::slice(x, 0, 0, 1)), InvalidArgument);
  backward(sum(y));
  CHECK(grad_of(w).to_vector<double>() == std::vector<double>{2, 2, 2});
  mul_(x, 2);  // released
  CHECK(x.to_vector<double>() == std::vector<double>{4, 4, 4});
}

TEST_CASE("in place: relu on a full slice view is refused also inside a checkpoint region, and relu gives its gradients") {
  const Tensor p = full({1}, 1, DType::f32), x = zeros({5}, DType::f32);
  set_requires_grad(p);
  set_requires_grad(x);
  const auto in_place = [p](const Tensor& in) {
    const Tensor sum_view = slice(in + p, 0, 0, 5);
    relu_(sum_view);
    return sum_view;
  };
  CHECK_THROWS_WITH(in_place(x), Catch::Contains("use relu"));
  CHECK_THROWS_WITH(checkpoint(in_place, x), Catch::Contains("use relu"));
  const auto out_of_place = [p](const Tensor& in) { return relu(slice(in + p, 0, 0, 5)); };
  backward(sum(checkpoint(out_of_place, x)));
  CHECK(grad_of(p).to_vector<double>() == std::vector<double>{5});
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(5, 1.0));
}
