// Compares the gradients backward() gives with central differences, in fp64.
#pragma once

#include <refrain/core/tensor.h>

#include <functional>
#include <vector>

namespace refrain::testing {

using TensorFunction = std::function<Tensor(std::vector<Tensor>)>;

struct GradcheckOptions {
  double step = 1e-6;
  double tolerance = 1e-6;  // |analytic - numeric| <= tolerance * (1 + |numeric|); rounding of a difference is ~1e-10
};

// Every floating input becomes a leaf and is checked element by element; inputs may be strided views (the check then
// runs on the view's elements). f must be deterministic. The output is contracted with fixed uneven weights, so that
// all of its elements count. Reports through CHECK.
void gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

// A tensor of fixed pseudo-random values in [-1, 1), the same for the same salt, rounded to a floating dtype.
Tensor test_values(const Shape& shape, DType dtype = DType::f64, int salt = 0);

// CHECKs shape, dtype and every bit.
void check_same_bits(const Tensor& a, const Tensor& b);
// CHECKs shapes and |a - b| <= tolerance * (1 + |b|).
void check_close(const Tensor& a, const Tensor& b, double tolerance);

}  // namespace refrain::testing
