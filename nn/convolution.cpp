#include <refrain/nn/convolution.h>

#include <refrain/autograd/ops/convolution.h>

#include <cmath>

namespace refrain {

Conv2d::Conv2d(std::int64_t num_in, std::int64_t num_out, std::int64_t kernel, const Conv2dOptions& options) : options_(options) {
  check(num_in > 0 && num_out > 0 && kernel > 0, "Conv2d: expected positive sizes, got ", num_in, " → ", num_out, ", kernel ", kernel);
  const double bound = 1 / std::sqrt(double(num_in * kernel * kernel));
  add_parameter("weight", weight, {num_out, num_in, kernel, kernel}, Init::kaiming_uniform(std::sqrt(5.0)));
  if (options.bias) add_parameter("bias", bias, {num_out}, Init::uniform(-bound, bound));
}

Tensor Conv2d::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  return conv2d(x, weight, bias, options_.stride, options_.padding);
}

}  // namespace refrain
