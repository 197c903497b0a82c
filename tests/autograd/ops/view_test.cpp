#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("views: gradients, sizes 0 and 1 included") {
  const Tensor x = test_values({3, 4, 5});
  gradcheck([](std::vector<Tensor> v) { return slice(v[0], 1, 1, 3); }, {x});
  gradcheck([](std::vector<Tensor> v) { return slice(v[0], -1, 0, 5, 2); }, {x});
  gradcheck([](std::vector<Tensor> v) { return slice(v[0], 0, 2, 2); }, {x});
  gradcheck([](std::vector<Tensor> v) { return select(v[0], 1, -1); }, {x});
  gradcheck([](std::vector<Tensor> v) { return transpose(v[0], 0, -1); }, {x});
  gradcheck([](std::vector<Tensor> v) { return permute(v[0], {1, -1, 0}); }, {x});
  gradcheck([](std::vector<Tensor> v) { return reshape(v[0], {-1, 10}); }, {x});
  gradcheck([](std::vector<Tensor> v) { return reshape(transpose(v[0], 0, 2), {20, 3}); }, {x});
  gradcheck([](std::vector<Tensor> v) { return reshape(v[0], {}); }, {test_values({1, 1})});
  gradcheck([](std::vector<Tensor> v) { return reshape(v[0], {0, 7}); }, {test_values({3, 0})});
  gradcheck([](std::vector<Tensor> v) { return expand(v[0], {2, 3, 4, 5}); }, {x});
  gradcheck([](std::vector<Tensor> v) { return expand(v[0], {3, 4, 5}); }, {test_values({3, 1, 5})});
  gradcheck([](std::vector<Tensor> v) { return unsqueeze(v[0], -1); }, {x});
  gradcheck([](std::vector<Tensor> v) { return unsqueeze(v[0], 0); }, {x});
  gradcheck([](std::vector<Tensor> v) { return squeeze(v[0], 1); }, {test_values({3, 1, 5})});
  gradcheck([](std::vector<Tensor> v) { return flatten(v[0], 1); }, {x});
  gradcheck([](std::vector<Tensor> v) { return flatten(v[0]); }, {view::transpose(x, 0, 1)});
  gradcheck([](std::vector<Tensor> v) { return contiguous(v[0]); }, {view::transpose(x, 0, 1)});
  gradcheck([](std::vector<Tensor> v) { return square(select(transpose(v[0], 0, 1), 0, 2)) * select(v[0], 2, 0); },
            {test_values({5, 5, 5})});
}

TEST_CASE("views: shapes, and bytes shared where that is possible") {
  const Tensor x = test_values({3, 4, 5});
  CHECK(unsqueeze(x, -1).shape() == Shape{3, 4, 5, 1});
  CHECK(unsqueeze(x, 1).shape() == Shape{3, 1, 4, 5});
  CHECK(squeeze(test_values({3, 1}), -1).shape() == Shape{3});
  CHECK(flatten(x, 0, 1).shape() == Shape{12, 5});
  CHECK(flatten(x, 1, 1).shape() == Shape{3, 4, 5});
  CHECK(flatten(test_values({})).shape() == Shape{1});
  CHECK(reshape(x, {4, -1}).storage() == x.storage());
  CHECK(slice(x, 0, 1, 2).storage() == x.storage());
  CHECK(is_same(contiguous(x), x));
  const Tensor copied = reshape(transpose(x, 0, 1), {-1});
  CHECK(copied.storage() != x.storage());
  CHECK(copied.to_vector<double>() == view::transpose(x, 0, 1).to_vector<double>());
  CHECK_THROWS_AS(squeeze(x, 0), InvalidArgument);
  CHECK_THROWS_AS(reshape(x, {7, -1}), InvalidArgument);
  CHECK_THROWS_AS(slice(x, 3, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(expand(x, {4, 5}), InvalidArgument);
}

TEST_CASE("views: save nothing") {
  const Device device = Device::new_cpu();
  const Tensor x = full({10, 10}, 1, DType::f32, device);
  set_requires_grad(x);
  const Tensor y = reshape(permute(slice(x, 0, 1, 9), {1, 0}), {4, 20});
  CHECK(x.storage()->num_saved() == 0);
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
  backward(sum(y));
  CHECK(grad_of(x).to_vector<double>()[0] == 0);
  CHECK(grad_of(x).to_vector<double>()[11] == 1);
}
