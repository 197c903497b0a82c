// Activation functions. f64, f32, f16 or bf16 (computed in f32, rounded once), any shape and strides.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

enum class GeluForm : std::uint8_t {
  erf,  // x·Φ(x)
  tanh  // x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
};

// Gaussian error linear unit (Hendrycks and Gimpel, 2016). Saves x; the output is rebuilt for its readers.
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::erf);
// x·sigmoid(x). Saves x; the output is rebuilt for its readers.
Tensor silu(const Tensor& x);

// These save their output. relu's gradient at 0 is 0.
Tensor relu(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);

}  // namespace refrain
