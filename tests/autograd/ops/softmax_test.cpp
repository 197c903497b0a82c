// Softmax and log-softmax as differentiable ops.
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using testing::gradcheck;
using testing::test_values;

TEST_CASE("softmax op: gradients match differences over every dim") {
  for (const Shape& shape : {Shape{1}, Shape{33}, Shape{3, 5}, Shape{2, 1, 7}, Shape{2, 17, 3}, Shape{0, 3}, Shape{3, 0}}) {
    for (int dim = -shape.size(); dim < shape.size(); ++dim) {
      gradcheck([=](auto in) { return softmax(in[0], dim); }, {test_values(shape, DType::f64, 1)});
      gradcheck([=](auto in) { return log_softmax(in[0], dim); }, {test_values(shape, DType::f64, 1)});
    }
  }
}

TEST_CASE("softmax op: strided inputs give what their copies give") {
  const Tensor x = view::permute(test_values({4, 3, 5}, DType::f64, 1), {2, 0, 1});
  for (int dim : {0, 1, 2}) {
    CHECK(same_bits(softmax(x, dim), softmax(clone(x), dim)));
    gradcheck([=](auto in) { return log_softmax(in[0], dim); }, {x});
  }
  gradcheck([](auto in) { return softmax(in[0], 1); }, {view::slice(test_values({3, 8}, DType::f64, 1), 1, 1, 8, 3)});
}

TEST_CASE("softmax op: a dim out of range is refused") {
  CHECK_THROWS_AS(softmax(zeros({2, 3}, DType::f32), 2), InvalidArgument);
  CHECK_THROWS_AS(log_softmax(zeros({}, DType::f32), 0), InvalidArgument);
  CHECK_THROWS_AS(softmax(zeros({2}, DType::i64), 0), InvalidArgument);
}
