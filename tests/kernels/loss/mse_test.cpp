// Mean squared error against a plain loop in double.
#include <refrain/kernels/loss/loss.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

std::vector<Tensor> run_both(const Tensor& x, const Tensor& target, Reduction reduction, double grad_out) {
  const Shape loss_shape = reduction == Reduction::none ? x.shape() : Shape{};
  const Tensor loss = empty(loss_shape, x.dtype()), grad = empty(x.shape(), x.dtype());
  launch(MseForward{
      .x = x, .target = target, .reduction = reduction, .out = loss, .partials = empty({MseForward::num_partials(x.numel())}, DType::f64)});
  launch(MseBackward{.grad_out = full(loss_shape, grad_out, x.dtype()), .x = x, .target = target, .reduction = reduction, .out = grad});
  return {loss, grad};
}

}  // namespace

TEST_CASE("mse_loss: loss and gradient match a loop in double") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
    for (std::int64_t n : {0, 1, 31, 33, 1000, 16384, 50001}) {
      for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        const Tensor x = random_tensor({n}, dtype, 1), target = random_tensor({n}, dtype, 2);
        const auto a = x.to_vector<double>(), b = target.to_vector<double>();
        const double divisor = reduction == Reduction::mean ? std::max(1.0, double(n)) : 1.0;
        std::vector<double> squares, grad;
        double sum = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
          squares.push_back((a[i] - b[i]) * (a[i] - b[i]));
          sum += squares.back();
          grad.push_back(3 * 2 * (a[i] - b[i]) / divisor);
        }
        const auto got = run_both(x, target, reduction, 3);
        INFO(dtype << " " << n << " " << name_of(reduction));
        CHECK(error_against(got[0], reduction == Reduction::none ? squares : std::vector<double>{sum / divisor}) < tolerance);
        CHECK(error_against(got[1], grad) < tolerance);
      }
    }
  }
}

TEST_CASE("mse_loss: results are the same on 1, 2 and 4 threads") {
  const Tensor x = random_tensor({300001}, DType::f32, 1), target = random_tensor({300001}, DType::f32, 2);
  CHECK(same_on_all_threads([&] { return run_both(x, target, Reduction::mean, 1); }));
}
