// Two linear layers with GELU between them, whose hidden values exist for a chunk of rows at a time.
#pragma once

#include <refrain/autograd/ops/activation.h>
#include <refrain/core/tensor.h>

#include <cstdint>

namespace refrain {

struct ChunkedMlpOptions {
  GeluForm gelu = GeluForm::erf;
  double dropout = 0;           // after GELU
  std::int64_t chunk_rows = 0;  // 0: all rows at once
};

// linear(dropout(gelu(linear(x, weight1, bias1))), weight2, bias2) for `chunk_rows` rows after another, rows being all dims
// of x but the last, in order. x [..., in], weight1 [hidden, in], weight2 [out, hidden], biases [hidden] and [out] or
// undefined; dtypes as linear() takes them. Dropout draws what it would draw without chunks.
//
// Saves x and the parameters. The hidden values of one chunk exist in forward, of one chunk and their gradient in backward,
// which computes the first layer again. The result and the gradient of x have the bits of the composition. The gradients of
// weights and biases are sums over chunks, in order: they depend on chunk_rows in their last places, never on the number of
// threads; they are kept in f32 (f64 for f64) and rounded once, so 16-bit weights with more than one chunk take f32 buffers
// of the weights' sizes while backward runs. Throws InvalidArgument when shapes or dtypes do not fit.
Tensor chunked_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2, const Tensor& bias2,
                   const ChunkedMlpOptions& options);

}  // namespace refrain
