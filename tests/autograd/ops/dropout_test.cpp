#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("dropout: gradients for views and sizes 0 and 1") {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1}, Shape{33}, Shape{5, 7}}) {
    for (double p : {0.0, 0.4, 1.0}) {
      Tensor x = test_values(shape);
      if (shape.size() == 2) x = view::transpose(x, 0, 1);
      INFO(shape << " " << p);
      // A generator made anew draws the same mask in every evaluation.
      gradcheck([p](std::vector<Tensor> v) { return dropout(v[0], p, Generator(3)); }, {x});
      if (shape.size() > 0) gradcheck([p](std::vector<Tensor> v) { return stochastic_depth(v[0], p, Generator(3)); }, {x});
    }
  }
  gradcheck(
      [](std::vector<Tensor> v) {
        seed_random(9);
        return dropout_add(v[0], v[1], 0.4);
      },
      {test_values({5, 7}), view::transpose(test_values({7, 5}, DType::f64, 1), 0, 1)});
}

TEST_CASE("dropout: value, gradient and later draws are those of a run without checkpoint") {
  const auto train = [](bool checkpointed) {
    seed_random(0);
    const Tensor w = full({4096}, 1, DType::f32), x = full({4096}, 1, DType::f32);
    set_requires_grad(w);
    const auto block = [w](const Tensor& in) { return dropout(in * w, 0.5); };
    const Tensor y = checkpointed ? checkpoint(block, x) : block(x);
    backward(sum(y));
    CHECK(y.to_vector<float>() == grad_of(w).to_vector<float>());
    return std::vector<Tensor>{y, grad_of(w), dropout(x, 0.5), dropout(x, 0.5), dropout(x, 0.5)};
  };
  const std::vector<Tensor> plain = train(false), replayed = train(true);
  for (std::size_t i = 0; i < plain.size(); ++i) check_same_bits(plain[i], replayed[i]);
  std::int64_t num_dropped = 0;
  for (float v : plain[0].to_vector<float>()) {
    CHECK((v == 0 || v == 2));
    num_dropped += v == 0;
  }
  CHECK(num_dropped > 1800);
  CHECK(num_dropped < 2300);
}

TEST_CASE("dropout: micro-batches of a stage draw the whole batch's numbers") {
  seed_random(5);
  const Tensor x = full({8, 33}, 1, DType::f32);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    set_random_position(7, begin);
    StageScope stage(2);
    const Tensor part = view::slice(x, 0, begin, end);
    return std::vector<Tensor>{dropout(part, 0.5), stochastic_depth(part, 0.5), dropout_add(part, part, 0.5)};
  };
  const std::vector<Tensor> whole = run(0, 8), first = run(0, 3), second = run(3, 8);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    check_same_bits(contiguous_values(view::slice(whole[i], 0, 0, 3)), first[i]);
    check_same_bits(contiguous_values(view::slice(whole[i], 0, 3, 8)), second[i]);
  }
}

TEST_CASE("dropout: saves nothing, and two calls differ") {
  const Device device = Device::new_cpu();
  const Tensor x = full({1000}, 1, DType::f32, device);
  set_requires_grad(x);
  seed_random(1);
  const Tensor a = dropout(x, 0.5), b = dropout(x, 0.5);
  CHECK(a.to_vector<float>() != b.to_vector<float>());
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
  CHECK(x.storage()->num_saved() == 0);
  CHECK(is_same(dropout(x, 0), x));
  CHECK_THROWS_AS(dropout(x, 1.5), InvalidArgument);
  CHECK_THROWS_AS(stochastic_depth(x, -1), InvalidArgument);
}
