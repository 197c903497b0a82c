#include <refrain/autograd/ops/convert.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("convert: the gradient comes back in the input's dtype") {
  const Tensor x = test_values({3, 5}, DType::f32);
  set_requires_grad(x);
  const Tensor wide = convert(x, DType::f64);
  CHECK(wide.dtype() == DType::f64);
  backward(wide, {.grad_out = full({3, 5}, 0.1, DType::f64)});
  CHECK(grad_of(x).dtype() == DType::f32);
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(15, double(0.1f)));
  CHECK(is_same(convert(x, DType::f32), x));
}

TEST_CASE("convert: through bf16 and back rounds value and gradient to bf16") {
  const Tensor x = full({2}, 257, DType::f32);
  set_requires_grad(x);
  const Tensor y = convert(convert(x, DType::bf16), DType::f32);
  CHECK(y.to_vector<double>() == std::vector<double>{256, 256});
  backward(y, {.grad_out = full({2}, 257, DType::f32)});
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>{256, 256});
}

TEST_CASE("convert: integers have no gradient") {
  const Tensor x = test_values({4}, DType::f32);
  set_requires_grad(x);
  CHECK_FALSE(convert(x, DType::i64).requires_grad());
  CHECK(convert(full({3}, 2, DType::i64), DType::f32).to_vector<double>() == std::vector<double>{2, 2, 2});
}
