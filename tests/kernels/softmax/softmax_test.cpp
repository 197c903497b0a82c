// Softmax against a plain loop in long double.
#include <refrain/kernels/softmax/softmax.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor forward(const Tensor& x, int dim, bool is_log) {
  const Tensor y = empty(x.shape(), x.dtype());
  launch(SoftmaxForward{.x = x, .dim = dim, .is_log = is_log, .out = y});
  return y;
}

Tensor backward(const Tensor& y, const Tensor& grad_out, int dim, bool is_log) {
  const Tensor grad_x = empty(y.shape(), y.dtype());
  launch(SoftmaxBackward{.y = y, .grad_out = grad_out, .dim = dim, .is_log = is_log, .out = grad_x});
  return grad_x;
}

}  // namespace

TEST_CASE("softmax: forward and backward match a loop in long double, over every dim") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-14 : 2e-6;
    for (const Shape& shape : {Shape{1}, Shape{5, 1}, Shape{1, 31}, Shape{7, 32, 3}, Shape{3, 33}, Shape{2, 1000}, Shape{4, 3, 17},
                               Shape{2, 40, 33, 2}, Shape{3, 0}, Shape{0, 3}}) {
      for (int dim = 0; dim < shape.size(); ++dim) {
        for (bool is_log : {false, true}) {
          const Tensor x = random_tensor(shape, dtype, 1, -20, 20), grad_out = random_tensor(shape, dtype, 2);
          const auto v = x.to_vector<double>(), g = grad_out.to_vector<double>();
          std::vector<double> out(v.size()), grad(v.size());
          std::size_t inner = 1;
          for (int i = dim + 1; i < shape.size(); ++i) inner *= std::size_t(shape[i]);
          const std::size_t length = std::size_t(shape[dim]);
          for (std::size_t line = 0; length > 0 && line < v.size() / length; ++line) {
            const std::size_t first = line / inner * length * inner + line % inner;
            const auto at = [&](std::size_t j) { return first + j * inner; };
            long double maximum = -kInf, sum = 0, dot = 0;
            for (std::size_t j = 0; j < length; ++j) maximum = std::max<long double>(maximum, v[at(j)]);
            for (std::size_t j = 0; j < length; ++j) sum += std::exp(v[at(j)] - maximum);
            for (std::size_t j = 0; j < length; ++j) {
              const long double p = std::exp(v[at(j)] - maximum) / sum;
              out[at(j)] = double(is_log ? v[at(j)] - maximum - std::log(sum) : p);
              dot += is_log ? static_cast<long double>(g[at(j)]) : g[at(j)] * p;
            }
            for (std::size_t j = 0; j < length; ++j) {
              const long double p = std::exp(v[at(j)] - maximum) / sum;
              grad[at(j)] = double(is_log ? g[at(j)] - p * dot : p * (g[at(j)] - dot));
            }
          }
          INFO(dtype << " " << concat(shape) << " dim " << dim << " log " << is_log);
          const Tensor y = forward(x, dim, is_log);
          CHECK(error_against(y, out) < tolerance);
          CHECK(error_against(backward(y, grad_out, dim, is_log), grad) < tolerance * 10);
        }
      }
    }
  }
}

TEST_CASE("softmax: a masked entry gets nothing, a fully masked line zeros, never NaN") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = tensor_of({1, 2, -kInf, -kInf, -kInf, -kInf}, {2, 3}, dtype), grad = tensor_of({1, 2, 3, 4, 5, 6}, {2, 3}, dtype);
    const std::vector<double> expected{0.26894142137, 0.73105857863, 0, 0, 0, 0};
    CHECK(error_against(forward(x, 1, false), expected) < 1e-7);
    CHECK(error_against(backward(forward(x, 1, false), grad, 1, false), {-0.19661193324, 0.19661193324, 0, 0, 0, 0}) < 1e-6);
    const auto log_values = forward(x, 1, true).to_vector<double>();
    CHECK(log_values[0] == Approx(-1.31326168752).epsilon(1e-6));
    for (std::size_t i = 2; i < 6; ++i) CHECK(log_values[i] == -kInf);
    for (double g : backward(forward(x, 1, true), grad, 1, true).to_vector<double>()) CHECK(std::isfinite(g));
    // The same lines side by side.
    const Tensor columns = tensor_of({1, -kInf, 2, -kInf, -kInf, -kInf}, {3, 2}, dtype);
    CHECK(error_against(forward(columns, 0, false), {0.26894142137, 0, 0.73105857863, 0, 0, 0}) < 1e-7);
    for (double value : forward(columns, 0, true).to_vector<double>()) CHECK_FALSE(std::isnan(value));
  }
}

TEST_CASE("softmax: huge logits do not overflow, and a NaN stays visible") {
  CHECK(error_against(forward(tensor_of({1e30, 1e30, -1e30, 3e38}, {2, 2}, DType::f32), 1, false), {0.5, 0.5, 0, 1}) < 1e-7);
  for (double value : forward(tensor_of({1, std::nan(""), 3}, {1, 3}, DType::f32), 1, false).to_vector<double>()) CHECK(std::isnan(value));
}

TEST_CASE("softmax: results are the same on 1, 2 and 4 threads, and a row's do not depend on the others") {
  const Tensor x = random_tensor({301, 197}, DType::f32, 1, -5, 5), grad = random_tensor({301, 197}, DType::f32, 2);
  CHECK(same_on_all_threads([&] {
    std::vector<Tensor> all;
    for (int dim : {0, 1}) {
      for (bool is_log : {false, true}) {
        all.push_back(forward(x, dim, is_log));
        all.push_back(backward(all.back(), grad, dim, is_log));
      }
    }
    return all;
  }));
  const auto values = x.to_vector<double>();
  const Tensor row = tensor_of({values.begin() + 197, values.begin() + 394}, {1, 197}, DType::f32);
  const auto all = forward(x, 1, false).to_vector<double>();
  CHECK(forward(row, 1, false).to_vector<double>() == std::vector<double>(all.begin() + 197, all.begin() + 394));
}

TEST_CASE("softmax: wrong arguments are named") {
  const Tensor x = zeros({2, 3}, DType::f32);
  CHECK_THROWS_WITH(launch(SoftmaxForward{.x = x, .dim = 2, .is_log = false, .out = x}), "softmax: dim must be 0 … 1, got 2");
  CHECK_THROWS_WITH(launch(SoftmaxForward{.x = x, .dim = 1, .is_log = false, .out = zeros({2, 4}, DType::f32)}),
                    "softmax: out must be [2, 3], got [2, 4]");
}

TEST_CASE("softmax: misaligned tensors, nothing written outside") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : {Shape{3, 7}, Shape{2, 33, 5}, Shape{3, 15, 17}, Shape{1, 1}}) {
      for (int dim = 0; dim < shape.size(); ++dim) {
        for (bool is_log : {false, true}) {
          const Guarded x(random_tensor(shape, dtype, 1)), y(shape, dtype), grad_x(shape, dtype);
          launch(SoftmaxForward{.x = x.tensor, .dim = dim, .is_log = is_log, .out = y.tensor});
          launch(SoftmaxBackward{.y = y.tensor, .grad_out = x.tensor, .dim = dim, .is_log = is_log, .out = grad_x.tensor});
          CHECK((x.is_intact() && y.is_intact() && grad_x.is_intact()));
          CHECK(same_bits(y.tensor, forward(clone(x.tensor), dim, is_log)));
          CHECK(same_bits(grad_x.tensor, backward(clone(y.tensor), clone(x.tensor), dim, is_log)));
        }
      }
    }
  }
}
