#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/kernels/elementwise/layouts.h>

#include <limits>

using namespace refrain;

namespace {

struct Case {
  UnaryOp op;
  double low, high;
  double (*f)(double);
  double (*derivative)(double);
};

double phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

const Case kCases[] = {
    {UnaryOp::neg, -3, 3, [](double x) { return -x; }, nullptr},
    {UnaryOp::abs, -3, 3, [](double x) { return std::abs(x); }, [](double x) { return x > 0   ? 1.0
                                                                                      : x < 0 ? -1.0
                                                                                              : 0.0; }},
    {UnaryOp::exp, -5, 5, [](double x) { return std::exp(x); }, [](double x) { return std::exp(x); }},
    {UnaryOp::log, 0.1, 9, [](double x) { return std::log(x); }, [](double x) { return 1 / x; }},
    {UnaryOp::sqrt, 0.1, 9, [](double x) { return std::sqrt(x); }, [](double x) { return 0.5 / std::sqrt(x); }},
    {UnaryOp::rsqrt, 0.1, 9, [](double x) { return 1 / std::sqrt(x); }, [](double x) { return -0.5 / (x * std::sqrt(x)); }},
    {UnaryOp::reciprocal, 0.1, 9, [](double x) { return 1 / x; }, [](double x) { return -1 / (x * x); }},
    {UnaryOp::square, -3, 3, [](double x) { return x * x; }, [](double x) { return 2 * x; }},
    {UnaryOp::sin, -9, 9, [](double x) { return std::sin(x); }, [](double x) { return std::cos(x); }},
    {UnaryOp::cos, -9, 9, [](double x) { return std::cos(x); }, [](double x) { return -std::sin(x); }},
    {UnaryOp::tanh, -5, 5, [](double x) { return std::tanh(x); }, [](double x) { return 1 - std::tanh(x) * std::tanh(x); }},
    {UnaryOp::sigmoid, -9, 9, logistic, [](double x) { return logistic(x) * (1 - logistic(x)); }},
    {UnaryOp::relu, -3, 3, [](double x) { return x > 0 ? x : 0; }, [](double x) { return x > 0 ? 1.0 : 0.0; }},
    {UnaryOp::gelu_erf, -6, 6, [](double x) { return x * phi(x); }, [](double x) { return phi(x) + x * density(x); }},
    {UnaryOp::gelu_tanh, -6, 6, gelu_tanh, [](double x) { return (gelu_tanh(x + 1e-6) - gelu_tanh(x - 1e-6)) / 2e-6; }},
    {UnaryOp::silu, -9, 9, [](double x) { return x * logistic(x); }, [](double x) { return logistic(x) * (1 + x * (1 - logistic(x))); }},
};

std::vector<double> mapped(const Tensor& x, double (*f)(double)) {
  std::vector<double> values = x.to_vector<double>();
  for (double& v : values) v = f(v);
  return values;
}

double tolerance_of(DType dtype) { return dtype == DType::f64 ? 2e-9 : 1e-6; }

template <class T>
T at(UnaryOp op, double x) {
  const Tensor t = from_values(std::vector<T>{T(x)}, {1}), out = empty_like(t);
  launch(Unary{.op = op, .x = t, .out = out});
  return out.data<T>()[0];
}

template <class T>
T slope_at(UnaryOp op, double value) {
  const Tensor t = from_values(std::vector<T>{T(value)}, {1}), grad = full({1}, 1, t.dtype()), out = empty_like(t);
  launch(UnaryBackward{.op = op, .grad_out = grad, .value = t, .out = out});
  return out.data<T>()[0];
}

}  // namespace

TEST_CASE("unary: every function agrees with the C library at hostile sizes") {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::f32, DType::f64}) {
      for (std::int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 1000, 40001}) {
        const Tensor x = random_tensor({n}, dtype, std::uint64_t(n) + 1, c.low, c.high);
        const Tensor buffer = full({n + 2}, -77, dtype), out = view::slice(buffer, 0, 1, n + 1);
        launch(Unary{.op = c.op, .x = x, .out = out});
        INFO(name_of(c.op) << " " << dtype << " " << n);
        CHECK(error_against(out, mapped(x, c.f)) < tolerance_of(dtype));
        CHECK(buffer.to_vector<double>().front() == -77);
        CHECK(buffer.to_vector<double>().back() == -77);
      }
    }
  }
}

TEST_CASE("unary: gradients agree with the derivative, from the output where that is enough") {
  for (const Case& c : kCases) {
    if (c.derivative == nullptr) continue;
    for (DType dtype : {DType::f32, DType::f64}) {
      for (std::int64_t n : {0, 1, 31, 32, 33, 20000}) {
        const Tensor x = random_tensor({n}, dtype, std::uint64_t(n) + 7, c.low, c.high), grad = random_tensor({n}, dtype, 5);
        Tensor value = x;
        if (backward_reads_output(c.op)) {
          value = empty_like(x);
          launch(Unary{.op = c.op, .x = x, .out = value});
        }
        const Tensor out = empty_like(x);
        launch(UnaryBackward{.op = c.op, .grad_out = grad, .value = value, .out = out});
        std::vector<double> expected = mapped(x, c.derivative), g = grad.to_vector<double>();
        for (std::size_t i = 0; i < g.size(); ++i) expected[i] *= g[i];
        INFO(name_of(c.op) << " " << dtype << " " << n);
        CHECK(error_against(out, expected) < (dtype == DType::f64 ? 2e-9 : 3e-6));
      }
    }
  }
}

TEST_CASE("unary: an element has the same bits in every layout, size and thread count") {
  for (const Case& c : kCases) {
    const Tensor x = random_tensor({3, 37, 5, 11}, DType::f32, 3, c.low, c.high);
    const Tensor expected = empty_like(x);
    launch(Unary{.op = c.op, .x = x, .out = expected});
    for (const auto& [name, in] : layouts_of(x)) {
      for (const auto& [out_name, out] : layouts_of(x)) {
        launch(Unary{.op = c.op, .x = in, .out = out});
        INFO(name_of(c.op) << " from " << name << " to " << out_name);
        CHECK(same_bits(out, expected));
      }
    }
    const Tensor one = empty({1}, DType::f32), in_place = clone(x);
    launch(Unary{.op = c.op, .x = view::reshape(view::slice(view::reshape(x, {-1}), 0, 777, 778), {1}), .out = one});
    CHECK(same_bits(one, view::slice(view::reshape(expected, {-1}), 0, 777, 778)));
    launch(Unary{.op = c.op, .x = in_place, .out = in_place});
    CHECK(same_bits(in_place, expected));
  }
  const Tensor big = random_tensor({100003}, DType::f32, 9, -4, 4);
  CHECK(same_on_all_threads([&] {
    const Tensor out = empty_like(big);
    launch(Unary{.op = UnaryOp::gelu_erf, .x = big, .out = out});
    return std::vector<Tensor>{out};
  }));
}

TEMPLATE_TEST_CASE("unary: gelu and silu keep their limits at infinity and pass NaN on", "", float, double) {
  using T = TestType;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (UnaryOp op : {UnaryOp::gelu_erf, UnaryOp::gelu_tanh, UnaryOp::silu}) {
    INFO(name_of(op));
    CHECK(at<T>(op, inf) == T(inf));
    CHECK(at<T>(op, 1e30) == T(1e30));
    CHECK(at<T>(op, -inf) == 0);
    CHECK(at<T>(op, -1e30) == 0);
    CHECK(at<T>(op, 0) == 0);
    CHECK(std::isnan(at<T>(op, nan)));
    CHECK(slope_at<T>(op, inf) == 1);
    CHECK(slope_at<T>(op, -inf) == 0);
    CHECK(slope_at<T>(op, 0) == T(0.5));
    CHECK(std::isnan(slope_at<T>(op, nan)));
  }
  CHECK(std::isnan(at<T>(UnaryOp::relu, nan)));
  CHECK(at<T>(UnaryOp::relu, -inf) == 0);
  CHECK(at<T>(UnaryOp::relu, inf) == T(inf));
}

TEST_CASE("unary: the left tail of the exact gelu keeps its relative accuracy") {
  for (double x : {-3.0, -5.0, -8.0, -10.0, -12.0}) {
    const double expected = double(0.5L * x * std::erfc(-static_cast<long double>(x) / std::sqrt(2.0L)));
    CHECK(std::abs(at<float>(UnaryOp::gelu_erf, x) / expected - 1) < 2e-6);
    CHECK(std::abs(at<double>(UnaryOp::gelu_erf, x) / expected - 1) < 1e-14);
  }
}

TEST_CASE("unary: what does not fit is refused by name") {
  const Tensor x = zeros({2, 3}, DType::f32);
  CHECK_THROWS_AS(launch(Unary{.op = UnaryOp::exp, .x = x, .out = zeros({3, 2}, DType::f32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Unary{.op = UnaryOp::exp, .x = x, .out = zeros({2, 3}, DType::f64)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Unary{.op = UnaryOp::exp, .x = zeros({2, 3}, DType::i32), .out = zeros({2, 3}, DType::i32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Unary{.op = UnaryOp::exp, .x = x, .out = view::expand(zeros({1, 3}, DType::f32), {2, 3})}), InvalidArgument);
  CHECK_THROWS_WITH(launch(Unary{.op = UnaryOp::silu, .x = x, .out = zeros({2}, DType::f32)}), Catch::Contains("silu"));
}

TEST_CASE("unary: the plan device and outputs without bytes are costed, not computed") {
  const Device plan = Device::plan();
  const Tensor x = empty({1000}, DType::f32, plan), out = empty({1000}, DType::f32, plan);
  const double before = cost_meter().total.bytes;
  launch(Unary{.op = UnaryOp::exp, .x = x, .out = out});
  CHECK(cost_meter().total.bytes == before + 8000);
  launch(Unary{.op = UnaryOp::exp, .x = zeros({4}, DType::f32), .out = without_bytes({4}, DType::f32, Device::cpu())});
  CHECK(cost_meter().total.bytes == before + 8032);
}
