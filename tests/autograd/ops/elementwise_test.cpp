#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

using Pair = std::pair<Tensor, Tensor>;

// Operands away from 0, so that a quotient is tame.
std::vector<Pair> operand_table() {
  const auto a = [](const Shape& shape) { return test_values(shape, DType::f64, 1); };
  const auto b = [](const Shape& shape) {
    const Tensor t = test_values(shape, DType::f64, 2);
    for (std::int64_t i = 0; i < t.numel(); ++i) t.data<double>()[i] += t.data<double>()[i] < 0 ? -1 : 1;
    return t;
  };
  return {
      {a({}), b({})},
      {a({1}), b({1})},
      {a({0, 3}), b({3})},
      {a({33}), b({33})},
      {a({3, 5}), b({5})},
      {a({5}), b({3, 5})},
      {a({3, 5}), b({3, 1})},
      {a({3, 1}), b({1, 5})},
      {a({2, 3, 4}), b({3, 1})},
      {a({2, 3, 4}), b({})},
      {a({1, 3, 1}), b({2, 1, 4})},
      {view::transpose(a({5, 3}), 0, 1), b({3, 5})},
      {view::slice(a({3, 11}), 1, 1, 11, 2), view::expand(b({1, 5}), {3, 5})},
  };
}

}  // namespace

TEST_CASE("arithmetic: gradients over broadcasting, views and sizes 0 and 1") {
  for (const auto& [a, b] : operand_table()) {
    INFO(a.shape() << " with " << b.shape());
    gradcheck([](std::vector<Tensor> x) { return x[0] + x[1]; }, {a, clone(b)});
    gradcheck([](std::vector<Tensor> x) { return x[0] - x[1]; }, {a, clone(b)});
    gradcheck([](std::vector<Tensor> x) { return x[0] * x[1]; }, {a, clone(b)});
    gradcheck([](std::vector<Tensor> x) { return x[0] / x[1]; }, {a, clone(b)});
  }
}

TEST_CASE("arithmetic: an operand used twice gets both gradients") {
  gradcheck([](std::vector<Tensor> x) { return x[0] * x[0] - x[0] + x[0] / (x[0] * x[0] + 2.0); }, {test_values({7})});
}

TEST_CASE("arithmetic: scalars on either side") {
  const Tensor x = test_values({3, 5});
  for (std::int64_t i = 0; i < 15; ++i) x.data<double>()[i] += 2;
  const Tensor view = view::transpose(x, 0, 1);
  gradcheck([](std::vector<Tensor> v) { return v[0] + 3.0; }, {view});
  gradcheck([](std::vector<Tensor> v) { return 3.0 + v[0]; }, {view});
  gradcheck([](std::vector<Tensor> v) { return v[0] - 3.0; }, {view});
  gradcheck([](std::vector<Tensor> v) { return 3.0 - v[0]; }, {view});
  gradcheck([](std::vector<Tensor> v) { return v[0] * -2.5; }, {view});
  gradcheck([](std::vector<Tensor> v) { return v[0] / 4.0; }, {view});
  gradcheck([](std::vector<Tensor> v) { return 4.0 / v[0]; }, {view});
  gradcheck([](std::vector<Tensor> v) { return -v[0]; }, {view});
  for (double exponent : {0.0, 1.0, 2.0, 3.0, 0.5, -1.5}) {
    gradcheck([exponent](std::vector<Tensor> v) { return pow(v[0], exponent); }, {view});
  }
  CHECK((2.0 - x).to_vector<double>()[0] == 2 - x.to_vector<double>()[0]);
  CHECK((2.0 / x).to_vector<double>()[3] == 2 / x.to_vector<double>()[3]);
}

TEST_CASE("unary functions: gradients for views and sizes 0 and 1") {
  using F = Tensor (*)(const Tensor&);
  const std::pair<const char*, F> functions[] = {
      {"neg", neg}, {"abs", abs}, {"square", square}, {"log", log},     {"sin", sin},
      {"cos", cos}, {"exp", exp}, {"sqrt", sqrt},     {"rsqrt", rsqrt}, {"reciprocal", reciprocal}};
  for (const auto& [name, f] : functions) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{33}, Shape{3, 5}}) {
      Tensor x = test_values(shape);
      for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = 1.5 + 0.9 * x.data<double>()[i];
      if (shape.size() == 2) x = view::transpose(x, 0, 1);
      INFO(name << " " << shape);
      gradcheck([f = f](std::vector<Tensor> v) { return f(v[0]); }, {x});
    }
  }
  gradcheck([](std::vector<Tensor> v) { return abs(v[0]); }, {test_values({20})});
}

TEST_CASE("where: gradients go where the condition points") {
  const Tensor condition = empty({3, 1}, DType::boolean);
  for (int i = 0; i < 3; ++i) condition.data<bool>()[i] = i != 1;
  gradcheck([&](std::vector<Tensor> v) { return where(condition, v[0], v[1]); }, {test_values({3, 5}), test_values({5}, DType::f64, 1)});
}

TEST_CASE("arithmetic: what backward reads is all that is saved") {
  const Device device = Device::new_cpu();
  const Tensor a = full({1000}, 2, DType::f32, device), b = full({1000}, 3, DType::f32, device);
  const auto saved_by = [&](auto f) {
    const Tensor y = f();
    return device.live_bytes(MemoryKind::saved);
  };
  CHECK(saved_by([&] { return a * b; }) == 0);  // nobody wants a gradient
  set_requires_grad(a);
  CHECK(saved_by([&] { return a + b; }) == 0);
  CHECK(saved_by([&] { return a - b; }) == 0);
  CHECK(saved_by([&] { return a * 2.0; }) == 0);
  CHECK(saved_by([&] { return a * b; }) == 4000);
  CHECK(saved_by([&] { return a / b; }) == 4000);
  CHECK(saved_by([&] { return b / a; }) == 8000);
}

TEST_CASE("arithmetic: operands that do not fit are refused by name") {
  CHECK_THROWS_WITH(zeros({3}, DType::f32) + zeros({4}, DType::f32), Catch::Contains("add"));
  CHECK_THROWS_WITH(zeros({3}, DType::f32) * zeros({3}, DType::f64), Catch::Contains("mul"));
  CHECK_THROWS_AS(exp(zeros({3}, DType::i64)), InvalidArgument);
  CHECK_THROWS_WITH(zeros({3}, DType::f32) + empty({3}, DType::f32, Device::plan()), Catch::Contains("device"));
}
