// Elementwise kernels in f16 and bf16. u is the relative change by one rounding, 2^-11 (f16) or 2^-8 (bf16).
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/kernels/elementwise/layouts.h>
#include <refrain/tests/support/half.h>

#include <numbers>

using namespace refrain;

namespace {

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double tanh_argument(double x) { return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

struct Case {
  UnaryOp op;
  double (*f)(double);
  double (*slope)(double);  // of the output where backward_reads_output(op), else of the input
  double low, high;         // |x| and |value| for which the f32 kernel's accuracy is known
};

const Case kCases[] = {
    {UnaryOp::neg, [](double x) { return -x; }, nullptr, 0, 1e39},
    {UnaryOp::abs, [](double x) { return std::abs(x); }, [](double x) { return x > 0   ? 1.0
                                                                               : x < 0 ? -1.0
                                                                                       : 0.0; }, 0, 1e39},
    {UnaryOp::exp, [](double x) { return std::exp(x); }, [](double y) { return y; }, 0, 1e39},
    {UnaryOp::log, [](double x) { return std::log(x); }, [](double x) { return 1 / x; }, 1e-6, 1e39},
    {UnaryOp::sqrt, [](double x) { return std::sqrt(x); }, [](double y) { return 0.5 / y; }, 1e-30, 1e39},
    {UnaryOp::rsqrt, [](double x) { return 1 / std::sqrt(x); }, [](double y) { return -0.5 * y * y * y; }, 1e-9, 1e9},
    {UnaryOp::reciprocal, [](double x) { return 1 / x; }, [](double y) { return -y * y; }, 1e-9, 1e9},
    {UnaryOp::square, [](double x) { return x * x; }, [](double x) { return 2 * x; }, 1e-15, 1e38},
    {UnaryOp::sin, [](double x) { return std::sin(x); }, [](double x) { return std::cos(x); }, 0, 1000},
    {UnaryOp::cos, [](double x) { return std::cos(x); }, [](double x) { return -std::sin(x); }, 0, 1000},
    {UnaryOp::tanh, [](double x) { return std::tanh(x); }, [](double y) { return 1 - y * y; }, 0, 1e9},
    {UnaryOp::sigmoid, [](double x) { return logistic(x); }, [](double y) { return y * (1 - y); }, 0, 1e9},
    {UnaryOp::relu, [](double x) { return x > 0 ? x : 0.0; }, [](double y) { return y > 0 ? 1.0 : 0.0; }, 0, 1e39},
    {UnaryOp::gelu_erf, [](double x) { return x * normal_cdf(x); }, [](double x) { return normal_cdf(x) + x * normal_density(x); }, 0, 12},
    {UnaryOp::gelu_tanh, [](double x) { return x * logistic(tanh_argument(x)); },
     [](double x) {
       const double s = logistic(tanh_argument(x));
       return s + x * s * (1 - s) * 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
     },
     0, 8},
    {UnaryOp::silu, [](double x) { return x * logistic(x); }, [](double x) { return logistic(x) + x * logistic(x) * (1 - logistic(x)); }, 0,
     80},
};

Tensor unary(UnaryOp op, const Tensor& x) {
  const Tensor out = full(x.shape(), 77, x.dtype());
  launch(Unary{.op = op, .x = x, .out = out});
  return out;
}

Tensor unary_backward(UnaryOp op, const Tensor& grad_out, const Tensor& value) {
  const Tensor out = full(value.shape(), 77, value.dtype());
  launch(UnaryBackward{.op = op, .grad_out = grad_out, .value = value, .out = out});
  return out;
}

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b, DType dtype) {
  const Tensor out = full(broadcast_shapes(a.shape(), b.shape(), "test"), 77, dtype);
  launch(Binary{.op = op, .a = a, .b = b, .out = out});
  return out;
}

double exact(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add: return a + b;
    case BinaryOp::sub: return a - b;
    case BinaryOp::mul: return a * b;
    case BinaryOp::div: return a / b;
    case BinaryOp::maximum: return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case BinaryOp::minimum: return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
  }
  return 0;
}

constexpr BinaryOp kOps[] = {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div, BinaryOp::maximum, BinaryOp::minimum};

// Values of every magnitude and sign, some special; no bf16 subnormals, which arithmetic flushes.
Tensor wild(DType dtype, std::int64_t n, std::uint64_t seed) {
  const double range = dtype == DType::bf16 ? 120 : 22;
  std::vector<double> exponents = random_values(n, seed, -range, range * 0.7), signs = random_values(n, seed + 1);
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    const double special[] = {0.0, -0.0, HUGE_VAL, -HUGE_VAL, NAN, 1, largest_of(dtype), -largest_of(dtype)};
    exponents[i] = i % 37 == 5 ? special[i / 37 % 8] : std::copysign(std::exp2(exponents[i]), signs[i]);
  }
  return tensor_of(exponents, {n}, dtype);
}

}  // namespace

// z, the f32 kernel's result, is within 33 of its roundings of f(x) (gelu's left tail; others are within 8), and y is z
// rounded: |y - f| <= (u + 34·2^-24)·|f|. sin and cos carry an absolute error instead, 8·2^-24.
TEST_CASE("unary in 16 bits: every value there is gives the f32 kernel's result, rounded once") {
  for (DType half : kHalves) {
    const Tensor x = all_values(half), wide = as(x, DType::f32);
    const std::vector<double> values = x.to_vector<double>();
    const double u = roundoff_of(half), least = underflow_of(half);
    for (const Case& c : kCases) {
      INFO(name_of(c.op) << " " << int(c.op) << " " << half);
      const Tensor y = unary(c.op, x);
      CHECK(num_different(y, as(unary(c.op, wide), half)) == 0);
      std::vector<double> expected(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] = c.f(values[i]);
      CHECK(num_outside(y, expected, [&](std::size_t i, double e) {
              const double magnitude = std::abs(values[i]);
              const bool is_known =
                  std::isfinite(magnitude) && (magnitude == 0 || magnitude >= std::max(c.low, 0x1p-126)) && magnitude <= c.high;
              return is_known ? (u + 34 * 0x1p-24) * std::abs(e) + 8 * 0x1p-24 * (c.op == UnaryOp::sin || c.op == UnaryOp::cos) + least
                              : HUGE_VAL;
            }) == 0);
    }
  }
}

// The same with the gradient as a factor. Slopes that are a difference of two terms near each other (gelu, silu) carry an
// absolute error of 8·2^-24.
TEST_CASE("unary backward in 16 bits: every value there is gives the f32 kernel's result, rounded once") {
  for (DType half : kHalves) {
    const Tensor value = all_values(half), grad_out = random_tensor({65536}, half, 3, -4, 4);
    const std::vector<double> values = value.to_vector<double>(), g = grad_out.to_vector<double>();
    const double u = roundoff_of(half), least = underflow_of(half);
    for (const Case& c : kCases) {
      if (c.slope == nullptr) continue;
      INFO(name_of(c.op) << " " << int(c.op) << " " << half);
      const Tensor got = unary_backward(c.op, grad_out, value);
      CHECK(num_different(got, as(unary_backward(c.op, as(grad_out, DType::f32), as(value, DType::f32)), half)) == 0);
      std::vector<double> expected(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] = g[i] * c.slope(values[i]);
      CHECK(num_outside(got, expected, [&](std::size_t i, double e) {
              const double magnitude = std::abs(values[i]);
              const bool is_known = magnitude >= std::max(c.low, 0x1p-100) && magnitude <= c.high;
              return is_known ? (u + 34 * 0x1p-24) * std::abs(e) + 8 * 0x1p-24 * std::abs(g[i]) + least : HUGE_VAL;
            }) == 0);
    }
  }
}

// 24 >= 2·11 + 2 bits: rounding the f32 result once more gives what one rounding would have (Figueroa, "When is double
// rounding innocuous?", 1995). So results equal the exact ones, rounded: |y - f| <= u·|f|.
TEST_CASE("binary in 16 bits: results are the exact ones, rounded once") {
  for (DType half : kHalves) {
    for (std::int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 1000, 40001}) {
      const Guarded a(wild(half, n, 1)), b(wild(half, n, 5)), out(Shape{n}, half);
      const std::vector<double> va = a.tensor.to_vector<double>(), vb = b.tensor.to_vector<double>();
      for (BinaryOp op : kOps) {
        launch(Binary{.op = op, .a = a.tensor, .b = b.tensor, .out = out.tensor});
        std::vector<double> expected(va.size());
        for (std::size_t i = 0; i < va.size(); ++i) expected[i] = rounded_to(exact(op, va[i], vb[i]), half);
        INFO(name_of(op) << " " << half << " " << n);
        CHECK(num_outside(out.tensor, expected, [&](std::size_t, double) { return half == DType::bf16 ? 0x1p-126 : 0.0; }) == 0);
        CHECK(out.is_intact());
      }
    }
  }
}

TEST_CASE("binary: f32 with 16 bits gives f32 without rounding the operand, or 16 bits, rounded once") {
  for (DType half : kHalves) {
    for (const auto& [a_shape, b_shape] : std::vector<std::pair<Shape, Shape>>{{{}, {}},
                                                                               {{0, 5}, {5}},
                                                                               {{33}, {33}},
                                                                               {{4, 33}, {33}},
                                                                               {{4, 33}, {4, 1}},
                                                                               {{33}, {}},
                                                                               {{7, 1, 1}, {1, 1, 600}},
                                                                               {{40001}, {40001}}}) {
      const Tensor narrow = random_tensor(a_shape, half, 1, 0.5, 2), wide = random_tensor(b_shape, DType::f32, 2, 0.5, 2);
      for (BinaryOp op : kOps) {
        INFO(name_of(op) << " " << half << " " << a_shape << " " << b_shape);
        const Tensor expected = binary(op, as(narrow, DType::f32), wide, DType::f32);
        CHECK(same_bits(binary(op, narrow, wide, DType::f32), expected));
        CHECK(same_bits(binary(op, narrow, wide, half), as(expected, half)));
        const Tensor swapped = binary(op, wide, as(narrow, DType::f32), DType::f32);
        CHECK(same_bits(binary(op, wide, narrow, DType::f32), swapped));
        CHECK(same_bits(binary(op, wide, wide, half), as(binary(op, wide, wide, DType::f32), half)));
      }
    }
  }
}

TEST_CASE("elementwise in 16 bits: an element has the same bits in every layout, in place and on any number of threads") {
  for (DType half : kHalves) {
    const Tensor a = random_tensor({3, 5, 7, 33}, half, 1), b = random_tensor({3, 5, 7, 33}, half, 2),
                 wide = random_tensor({3, 5, 7, 33}, DType::f32, 2);
    const Tensor expected = binary(BinaryOp::mul, a, b, half), mixed = binary(BinaryOp::add, a, wide, DType::f32),
                 gelu = unary(UnaryOp::gelu_erf, a);
    for (const auto& [name, view] : layouts_of(a)) {
      for (const auto& [out_name, out] : layouts_of(b)) {
        INFO(half << " " << name << " to " << out_name);
        launch(Binary{.op = BinaryOp::mul, .a = view, .b = b, .out = out});
        CHECK(same_bits(out, expected));
        launch(Unary{.op = UnaryOp::gelu_erf, .x = view, .out = out});
        CHECK(same_bits(out, gelu));
      }
      for (const auto& [out_name, out] : layouts_of(wide)) {
        launch(Binary{.op = BinaryOp::add, .a = view, .b = wide, .out = out});
        CHECK(same_bits(out, mixed));
      }
    }
    const Tensor in_place = clone(a);
    launch(Binary{.op = BinaryOp::mul, .a = in_place, .b = b, .out = in_place});
    CHECK(same_bits(in_place, expected));
    const Tensor long_a = wild(half, 100003, 1), long_b = random_tensor({100003}, DType::f32, 9);
    CHECK(same_on_all_threads([&] {
      return std::vector<Tensor>{unary(UnaryOp::gelu_tanh, long_a), binary(BinaryOp::add, long_a, long_b, DType::f32)};
    }));
  }
}

TEST_CASE("scalar ops in 16 bits: the scalar is not rounded to 16 bits, the result once") {
  for (DType half : kHalves) {
    const Tensor x = random_tensor({513}, half, 4, 0.5, 8);
    const std::vector<double> values = x.to_vector<double>();
    for (ScalarOp op : {ScalarOp::add, ScalarOp::mul, ScalarOp::div, ScalarOp::rsub, ScalarOp::rdiv, ScalarOp::pow, ScalarOp::maximum,
                        ScalarOp::minimum}) {
      const Tensor out = empty_like(x);
      launch(Scalar{.op = op, .x = x, .scalar = 3.1416, .out = out});
      const double s = double(3.1416f);
      std::vector<double> expected;
      for (double v : values) {
        switch (op) {
          case ScalarOp::add: expected.push_back(v + s); break;
          case ScalarOp::mul: expected.push_back(v * s); break;
          case ScalarOp::div: expected.push_back(v / s); break;
          case ScalarOp::rsub: expected.push_back(s - v); break;
          case ScalarOp::rdiv: expected.push_back(s / v); break;
          case ScalarOp::pow: expected.push_back(std::pow(v, s)); break;
          case ScalarOp::maximum: expected.push_back(std::max(v, s)); break;
          case ScalarOp::minimum: expected.push_back(std::min(v, s)); break;
        }
      }
      INFO(name_of(op) << " " << half);
      // The f32 result's own rounding (of an operand as large as 8 for a difference; of pow by the C library), then ours.
      CHECK(num_outside(out, expected,
                        [&](std::size_t, double e) { return (roundoff_of(half) + 2 * 0x1p-24) * std::abs(e) + 8 * 0x1p-24; }) == 0);
    }
  }
}

TEST_CASE("backward of quotients and powers in 16 bits: intermediate results may leave the type's range") {
  // grad·a/b² = 1e-3·60000/(0.01)² with a/b = 6e6, far above 65,504; and 1e3·1e-3/100² with a/b below the least f16.
  const Tensor g = tensor_of({1e-3, 1000}, {2}, DType::f16), a = tensor_of({6e4, 1e-7}, {2}, DType::f16),
               b = tensor_of({1, 200}, {2}, DType::f16);
  const Tensor out = empty_like(g);
  const auto value = [](const Tensor& t, std::size_t i) { return t.to_vector<double>()[i]; };
  launch(DivBackward{.grad_out = g, .a = a, .b = b, .out = out});
  for (std::size_t i = 0; i < 2; ++i) {
    const double expected = -value(g, i) * value(a, i) / (value(b, i) * value(b, i));
    CHECK(std::abs(value(out, i) - expected) <= 0x1.01p-11 * std::abs(expected) + 0x1p-25);
  }
  // x^3 at 100: 3·100² = 30,000 although the slope's own cube would overflow; s/x² with x² below the least f16.
  const Tensor x = tensor_of({100, 1e-4}, {2}, DType::f16), small = tensor_of({1, 1e-4}, {2}, DType::f16);
  launch(ScalarBackward{.op = ScalarOp::pow, .grad_out = small, .x = x, .scalar = 3, .out = out});
  CHECK(std::abs(value(out, 0) - 30000) <= 0x1.01p-11 * 30000);
  launch(ScalarBackward{.op = ScalarOp::rdiv, .grad_out = small, .x = x, .scalar = 2, .out = out});
  const double slope = -2 * value(small, 1) / (value(x, 1) * value(x, 1));
  CHECK(std::abs(value(out, 1) - slope) <= 0x1.01p-11 * std::abs(slope));
}

TEST_CASE("where: f32 with 16 bits gives f32") {
  for (DType half : kHalves) {
    const Tensor condition = empty({513}, DType::boolean), a = random_tensor({513}, half, 1), b = random_tensor({513}, DType::f32, 2);
    for (std::int64_t i = 0; i < 513; ++i) condition.data<bool>()[i] = i % 3 == 0;
    const Tensor out = empty({513}, DType::f32), swapped = empty({513}, DType::f32);
    launch(Where{.condition = condition, .a = a, .b = b, .out = out});
    launch(Where{.condition = condition, .a = b, .b = a, .out = swapped});
    const std::vector<double> va = a.to_vector<double>(), vb = b.to_vector<double>(), got = out.to_vector<double>(),
                              other = swapped.to_vector<double>();
    for (std::size_t i = 0; i < 513; ++i) {
      CHECK(got[i] == (i % 3 == 0 ? va[i] : vb[i]));
      CHECK(other[i] == (i % 3 == 0 ? vb[i] : va[i]));
    }
  }
}

TEST_CASE("elementwise: dtypes that do not mix are refused by name") {
  const auto run = [](DType a, DType b, DType out) {
    return message_of([&] { launch(Binary{.op = BinaryOp::add, .a = zeros({3}, a), .b = zeros({3}, b), .out = zeros({3}, out)}); });
  };
  CHECK(run(DType::f16, DType::bf16, DType::f32) == "add: f16 and bf16 do not mix; convert one of them first");
  CHECK(run(DType::f16, DType::f16, DType::bf16) == "add: f16 and bf16 do not mix; convert one of them first");
  CHECK(run(DType::f64, DType::f32, DType::f64) == "add: f64 does not mix with other dtypes; convert one of them first");
  CHECK(run(DType::f16, DType::i32, DType::f16) == "add: b must be of a floating dtype, got i32");
  CHECK(message_of([] {
          launch(Unary{.op = UnaryOp::exp, .x = zeros({3}, DType::f16), .out = zeros({3}, DType::f32)});
        }).starts_with("exp: x must be f32"));
  CHECK(message_of([] {
          launch(Where{.condition = zeros({3}, DType::boolean),
                       .a = zeros({3}, DType::f16),
                       .b = zeros({3}, DType::bf16),
                       .out = zeros({3}, DType::f32)});
        }) == "where: f16 and bf16 do not mix; convert one of them first");
}
