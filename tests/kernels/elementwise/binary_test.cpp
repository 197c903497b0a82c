#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/kernels/elementwise/layouts.h>

#include <limits>

using namespace refrain;

namespace {

double reference(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add: return a + b;
    case BinaryOp::sub: return a - b;
    case BinaryOp::mul: return a * b;
    case BinaryOp::div: return a / b;
    case BinaryOp::maximum: return std::max(a, b);
    case BinaryOp::minimum: return std::min(a, b);
  }
  return 0;
}

std::vector<double> broadcast(const Tensor& t, const Shape& shape) { return view::expand(t, shape).to_vector<double>(); }

constexpr BinaryOp kOps[] = {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div, BinaryOp::maximum, BinaryOp::minimum};

}  // namespace

TEST_CASE("binary: operands broadcast in every direction") {
  const std::pair<Shape, Shape> shapes[] = {
      {{}, {}},
      {{1}, {1}},
      {{0}, {1}},
      {{33}, {33}},
      {{33}, {}},
      {{}, {33}},
      {{4, 33}, {33}},
      {{4, 33}, {4, 1}},
      {{4, 1}, {1, 33}},
      {{4, 33}, {1}},
      {{2, 3, 5}, {3, 1}},
      {{2, 1, 5}, {1, 3, 1}},
      {{1000, 3}, {3}},
      {{3, 1000}, {3, 1}},
      {{7, 1, 1}, {1, 1, 600}},
      {{0, 5}, {5}},
      {{5}, {3, 0, 5}},
      {{2, 3, 4, 5}, {3, 4, 5}},
      {{2, 3, 4, 5}, {2, 1, 4, 1}},
      {{40000}, {1}},
      {{197, 64}, {1, 197, 1}},
  };
  for (const auto& [a_shape, b_shape] : shapes) {
    const Shape shape = broadcast_shapes(a_shape, b_shape, "test");
    for (DType dtype : {DType::f32, DType::f64}) {
      const Tensor a = random_tensor(a_shape, dtype, 1), b = random_tensor(b_shape, dtype, 2, 0.5, 2);
      const std::vector<double> va = broadcast(a, shape), vb = broadcast(b, shape);
      for (BinaryOp op : kOps) {
        const Tensor out = full(shape, -77, dtype);
        launch(Binary{.op = op, .a = a, .b = b, .out = out});
        std::vector<double> expected(va.size());
        for (std::size_t i = 0; i < va.size(); ++i) expected[i] = reference(op, va[i], vb[i]);
        INFO(name_of(op) << " " << dtype << " " << a_shape << " " << b_shape);
        CHECK(error_against(out, expected) < (dtype == DType::f64 ? 1e-15 : 1e-7));
      }
    }
  }
}

TEST_CASE("binary: layouts do not change bits") {
  const Tensor a = random_tensor({5, 7, 33}, DType::f32, 1), b = random_tensor({5, 7, 33}, DType::f32, 2);
  const Tensor expected = empty_like(a);
  launch(Binary{.op = BinaryOp::mul, .a = a, .b = b, .out = expected});
  for (const auto& [a_name, a_view] : layouts_of(a)) {
    for (const auto& [b_name, b_view] : layouts_of(b)) {
      for (const auto& [out_name, out] : layouts_of(a)) {
        launch(Binary{.op = BinaryOp::mul, .a = a_view, .b = b_view, .out = out});
        INFO(a_name << " · " << b_name << " -> " << out_name);
        CHECK(same_bits(out, expected));
      }
    }
  }
}

TEST_CASE("binary: maximum and minimum pass NaN on from either side") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor a = from_values(std::vector<float>{nan, 1, 2, -0.5f}, {4}), b = from_values(std::vector<float>{1, nan, 3, -2}, {4});
  const Tensor out = empty_like(a);
  launch(Binary{.op = BinaryOp::maximum, .a = a, .b = b, .out = out});
  std::vector<float> values = out.to_vector<float>();
  CHECK(std::isnan(values[0]));
  CHECK(std::isnan(values[1]));
  CHECK(values[2] == 3);
  CHECK(values[3] == -0.5f);
  launch(Binary{.op = BinaryOp::minimum, .a = a, .b = b, .out = out});
  values = out.to_vector<float>();
  CHECK(std::isnan(values[0]));
  CHECK(std::isnan(values[1]));
  CHECK(values[2] == 2);
  CHECK(values[3] == -2);
}

TEST_CASE("scalar: every form computes what it says") {
  const Tensor x = random_tensor({3, 41}, DType::f32, 4, 0.5, 2), transposed = view::transpose(x, 0, 1);
  const auto check_op = [&](ScalarOp op, double scalar, auto f) {
    const Tensor out = empty(transposed.shape(), DType::f32);
    launch(Scalar{.op = op, .x = transposed, .scalar = scalar, .out = out});
    std::vector<double> expected = transposed.to_vector<double>();
    for (double& v : expected) v = f(v);
    INFO(name_of(op) << " " << scalar);
    CHECK(error_against(out, expected) < 3e-7);
  };
  check_op(ScalarOp::add, 3, [](double v) { return v + 3; });
  check_op(ScalarOp::mul, -2, [](double v) { return v * -2; });
  check_op(ScalarOp::div, 3, [](double v) { return v / 3; });
  check_op(ScalarOp::rsub, 3, [](double v) { return 3 - v; });
  check_op(ScalarOp::rdiv, 3, [](double v) { return 3 / v; });
  check_op(ScalarOp::maximum, 1, [](double v) { return std::max(v, 1.0); });
  check_op(ScalarOp::minimum, 1, [](double v) { return std::min(v, 1.0); });
  for (double exponent : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 2.5, -1.5}) {
    check_op(ScalarOp::pow, exponent, [exponent](double v) { return std::pow(v, exponent); });
  }
}

TEST_CASE("compare and where: every dtype and broadcast") {
  const Tensor a = from_values(std::vector<float>{1, 2, 3, 4}, {4}), b = from_values(std::vector<float>{2}, {1});
  const auto compared = [&](CompareOp op) {
    const Tensor out = empty({4}, DType::boolean);
    launch(Compare{.op = op, .a = a, .b = b, .out = out});
    return out.to_vector<std::int64_t>();
  };
  CHECK(compared(CompareOp::equal) == std::vector<std::int64_t>{0, 1, 0, 0});
  CHECK(compared(CompareOp::not_equal) == std::vector<std::int64_t>{1, 0, 1, 1});
  CHECK(compared(CompareOp::less) == std::vector<std::int64_t>{1, 0, 0, 0});
  CHECK(compared(CompareOp::less_equal) == std::vector<std::int64_t>{1, 1, 0, 0});
  CHECK(compared(CompareOp::greater) == std::vector<std::int64_t>{0, 0, 1, 1});
  CHECK(compared(CompareOp::greater_equal) == std::vector<std::int64_t>{0, 1, 1, 1});

  const Tensor condition = empty({2, 3}, DType::boolean);
  for (int i = 0; i < 6; ++i) condition.data<bool>()[i] = i % 2 == 0;
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor out = empty({2, 3}, dtype);
    launch(Where{.condition = condition, .a = full({3}, 1, dtype), .b = zeros({2, 1}, dtype), .out = out});
    INFO(dtype);
    CHECK(out.to_vector<double>() == std::vector<double>{1, 0, 1, 0, 1, 0});
    const Tensor equal = empty({2, 3}, DType::boolean);
    launch(Compare{.op = CompareOp::equal, .a = out, .b = full({}, 1, dtype), .out = equal});
    CHECK(equal.to_vector<double>() == std::vector<double>{1, 0, 1, 0, 1, 0});
  }
  CHECK_THROWS_AS(launch(Where{.condition = a, .a = a, .b = a, .out = empty({4}, DType::f32)}), InvalidArgument);
}

TEST_CASE("div_backward and scalar_backward: bits of the formula composed of single kernels, broadcast operands too") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor g = random_tensor({5, 700}, dtype, 1), a = random_tensor({5, 1}, dtype, 2), b = random_tensor({700}, dtype, 3, 0.5, 2);
    const auto binary = [&](BinaryOp op, const Tensor& x, const Tensor& y) {
      const Tensor out = empty({5, 700}, dtype);
      launch(Binary{.op = op, .a = x, .b = y, .out = out});
      return out;
    };
    const auto scalar = [&](ScalarOp op, const Tensor& x, double s) {
      const Tensor out = empty(x.shape(), dtype);
      launch(Scalar{.op = op, .x = x, .scalar = s, .out = out});
      return out;
    };
    const Tensor product = binary(BinaryOp::mul, binary(BinaryOp::div, g, b), binary(BinaryOp::div, a, b)), negated = empty_like(product);
    launch(Unary{.op = UnaryOp::neg, .x = product, .out = negated});
    const Tensor out = empty({5, 700}, dtype);
    launch(DivBackward{.grad_out = g, .a = a, .b = b, .out = out});
    CHECK(same_bits(out, negated));
    launch(ScalarBackward{.op = ScalarOp::rdiv, .grad_out = g, .x = b, .scalar = 0.3, .out = out});
    CHECK(same_bits(out, binary(BinaryOp::mul, g, binary(BinaryOp::div, scalar(ScalarOp::rdiv, b, -0.3), b))));
    for (double exponent : {3.0, 2.0, 1.0, 2.5, -1.0}) {
      launch(ScalarBackward{.op = ScalarOp::pow, .grad_out = g, .x = b, .scalar = exponent, .out = out});
      INFO(dtype << " " << exponent);
      CHECK(same_bits(out, binary(BinaryOp::mul, g, scalar(ScalarOp::mul, scalar(ScalarOp::pow, b, exponent - 1), exponent))));
    }
    CHECK_THROWS_AS(launch(ScalarBackward{.op = ScalarOp::mul, .grad_out = g, .x = b, .scalar = 1, .out = out}), InvalidArgument);
  }
}
