// The CUDA softmax against the CPU's and f64: bit for bit where lines are summed in the CPU's order or sums are exact, within
// the roundings of their sums elsewhere.
#include <refrain/kernels/softmax/softmax.h>
#include <refrain/tests/cuda/row_tensors.h>

using namespace refrain;

namespace {

struct Case {
  Shape shape;
  int dim;
  std::int64_t length() const { return shape[dim]; }
  bool has_rows() const { return dim == shape.size() - 1; }
};

const std::vector<Case> kCases = {
    {{1}, 0},      {{3, 1}, 1},    {{5, 31}, 1},   {{3, 32}, 1},     {{2, 3, 33}, 2},
    {{3, 197}, 1}, {{2, 1000}, 1}, {{2, 1032}, 1}, {{2, 5000}, 1},   {{1, 4101}, 1},
    {{0, 7}, 1},   {{7, 0}, 1},    {{31, 3}, 0},   {{2, 33, 35}, 1}, {{40, 1, 2}, 0},
};

Tensor forward(const Tensor& x, int dim, bool is_log, std::int64_t margin) {
  DeviceTensors on(margin);
  const Tensor out = on.output(x.shape(), x.dtype());
  launch(SoftmaxForward{.x = on.put(x), .dim = dim, .is_log = is_log, .out = out});
  CHECK(on.are_intact());
  return on_cpu(out);
}

Tensor backward(const Tensor& y, const Tensor& grad_out, int dim, bool is_log, std::int64_t margin) {
  DeviceTensors on(margin);
  const Tensor out = on.output(y.shape(), y.dtype());
  launch(SoftmaxBackward{.y = on.put(y), .grad_out = on.put(grad_out), .dim = dim, .is_log = is_log, .out = out});
  CHECK(on.are_intact());
  return on_cpu(out);
}

Tensor forward_on_cpu(const Tensor& x, int dim, bool is_log) {
  const Tensor out = empty(x.shape(), x.dtype());
  launch(SoftmaxForward{.x = x, .dim = dim, .is_log = is_log, .out = out});
  return out;
}

Tensor backward_on_cpu(const Tensor& y, const Tensor& grad_out, int dim, bool is_log) {
  const Tensor out = empty(y.shape(), y.dtype());
  launch(SoftmaxBackward{.y = y, .grad_out = grad_out, .dim = dim, .is_log = is_log, .out = out});
  return out;
}

// Calls f(elements) for every line.
template <class F>
void for_lines(const Case& c, F&& f) {
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < c.dim; ++i) outer *= c.shape[i];
  for (int i = c.dim + 1; i < c.shape.size(); ++i) inner *= c.shape[i];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      std::vector<std::size_t> line;
      for (std::int64_t j = 0; j < c.length(); ++j) line.push_back(std::size_t((o * c.length() + j) * inner + i));
      f(line);
    }
  }
}

constexpr double kRange = 8;  // of the inputs: largest - smallest

}  // namespace

// As in tests/autograd/ops/precision_row_cases.cpp: exponents, of at most kRange, move by kRange·u for an element and for the
// sum; 3 roundings for an exponential; n for the sum; 1/sum and the product.
TEST_CASE("cuda softmax: forward within the roundings of its sum, the same at any address, columns with the CPU's bits") {
  for (DType dtype : kFloating) {
    for (const Case& c : kCases) {
      for (bool is_log : {false, true}) {
        INFO(dtype << " " << concat(c.shape) << " over " << c.dim << (is_log ? " log" : ""));
        const Tensor x = random_tensor(c.shape, dtype, 1, -kRange / 2, kRange / 2), got = forward(x, c.dim, is_log, kAligned);
        CHECK(num_different(forward(x, c.dim, is_log, kMisaligned), got) == 0);
        if (!c.has_rows() && !is_log) CHECK(num_different(got, forward_on_cpu(x, c.dim, is_log)) == 0);
        const std::vector<double> v = x.to_vector<double>();
        std::vector<double> expected(v.size());
        for_lines(c, [&](const std::vector<std::size_t>& line) {
          double largest = -HUGE_VAL, sum = 0;
          for (std::size_t i : line) largest = std::max(largest, v[i]);
          for (std::size_t i : line) sum += std::exp(v[i] - largest);
          for (std::size_t i : line) expected[i] = is_log ? v[i] - largest - std::log(sum) : std::exp(v[i] - largest) / sum;
        });
        const double n = 2 * kRange + double(c.length()) + 8, u = roundings_of(dtype, n);
        const double log_error = u + roundings_of(dtype, 8) * (kRange + std::log(double(c.length()) + 1));
        CHECK(num_outside(got, expected, [&](std::size_t, double e) { return stored(e, is_log ? log_error : u * e, dtype); }) ==
              0);
      }
    }
  }
}

TEST_CASE("cuda softmax: masked lines give zeros or -inf, never NaN; NaN and inf stay in their line") {
  const double inf = HUGE_VAL;
  for (DType dtype : kFloating) {
    for (std::int64_t length : {3, 40, 1100}) {
      for (int dim : {0, 1}) {
        Tensor x = random_tensor(dim == 1 ? Shape{4, length} : Shape{length, 4}, DType::f64, 1);
        const auto at = [&](std::int64_t line, std::int64_t i) -> double& {
          return x.data<double>()[dim == 1 ? line * length + i : i * 4 + line];
        };
        for (std::int64_t i = 0; i < length; ++i) at(0, i) = -inf;
        for (std::int64_t i = 1; i < length; ++i) at(1, i) = -inf;
        at(2, length - 1) = NAN;
        const Tensor rounded = tensor_of(x.to_vector<double>(), x.shape(), dtype);
        for (bool is_log : {false, true}) {
          INFO(dtype << " " << length << " over " << dim << (is_log ? " log" : ""));
          const std::vector<double> got = forward(rounded, dim, is_log, kAligned).to_vector<double>();
          const auto value = [&](std::int64_t line, std::int64_t i) {
            return got[std::size_t(dim == 1 ? line * length + i : i * 4 + line)];
          };
          double sum = 0;
          for (std::int64_t i = 0; i < length; ++i) {
            CHECK(value(0, i) == (is_log ? -inf : 0.0));
            CHECK(value(1, i) == (i == 0 ? (is_log ? 0.0 : 1.0) : (is_log ? -inf : 0.0)));
            CHECK(std::isnan(value(2, i)));
            sum += is_log ? std::exp(value(3, i)) : value(3, i);
          }
          CHECK(sum == Approx(1).margin(dtype == DType::bf16 || dtype == DType::f16 ? 0.02 : 1e-5));
        }
      }
    }
  }
}

// With y a multiple of 1/8 and integers for the gradient all sums are exact; log-softmax's exponential has the CPU's bits.
TEST_CASE("cuda softmax_backward: the CPU's bits where sums are exact, at any address") {
  for (DType dtype : kFloating) {
    for (const Case& c : kCases) {
      for (bool is_log : {false, true}) {
        INFO(dtype << " " << concat(c.shape) << " over " << c.dim << (is_log ? " log" : ""));
        std::vector<double> values = random_values(numel_of(c.shape), 2, is_log ? -8 : 0, is_log ? 0 : 1);
        for (double& v : values) v = std::nearbyint(v * 8) / 8 + 0.0;
        const Tensor y = tensor_of(values, c.shape, dtype), grad_out = small_integers(c.shape, dtype, 3, 3);
        const Tensor expected = backward_on_cpu(y, grad_out, c.dim, is_log);
        CHECK(num_different(backward(y, grad_out, c.dim, is_log, kAligned), expected) == 0);
        CHECK(num_different(backward(y, grad_out, c.dim, is_log, kMisaligned), expected) == 0);
      }
    }
  }
}

TEST_CASE("cuda softmax_backward: within the roundings of its sum, columns with the CPU's bits, in place as well") {
  for (DType dtype : kFloating) {
    for (const Case& c : kCases) {
      for (bool is_log : {false, true}) {
        INFO(dtype << " " << concat(c.shape) << " over " << c.dim << (is_log ? " log" : ""));
        const Tensor y = forward_on_cpu(random_tensor(c.shape, dtype, 1, -kRange / 2, kRange / 2), c.dim, is_log);
        const Tensor grad_out = random_tensor(c.shape, dtype, 2, -1, 2), got = backward(y, grad_out, c.dim, is_log, kAligned);
        if (!c.has_rows()) CHECK(num_different(got, backward_on_cpu(y, grad_out, c.dim, is_log)) == 0);
        const std::vector<double> v = y.to_vector<double>(), g = grad_out.to_vector<double>();
        std::vector<double> expected(v.size()), error(v.size());
        for_lines(c, [&](const std::vector<std::size_t>& line) {
          double sum = 0, all = 0;
          for (std::size_t i : line) sum += is_log ? g[i] : g[i] * v[i], all += std::abs(is_log ? g[i] : g[i] * v[i]);
          for (std::size_t i : line) {
            const double factor = is_log ? std::exp(v[i]) : v[i];
            expected[i] = is_log ? g[i] - factor * sum : factor * (g[i] - sum);
            const double n = double(line.size());
            error[i] = factor * (roundings_of(dtype, n + 8 + 2 * kRange) * all) +
                       roundings_of(dtype, 4) * std::abs(g[i]) * (is_log ? 1 : factor);
          }
        });
        CHECK(num_outside(got, expected, [&](std::size_t i, double e) { return stored(e, error[i], dtype); }) == 0);
        const Tensor in_place = on_cuda(grad_out);
        launch(SoftmaxBackward{.y = on_cuda(y), .grad_out = in_place, .dim = c.dim, .is_log = is_log, .out = in_place});
        CHECK(num_different(on_cpu(in_place), got) == 0);
        launch(SoftmaxBackward{.y = in_place,
                               .grad_out = in_place,
                               .dim = c.dim,
                               .is_log = is_log,
                               .out = without_bytes(c.shape, dtype, cuda_device())});
      }
    }
  }
}
