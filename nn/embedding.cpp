#include <refrain/nn/embedding.h>

#include <refrain/autograd/ops/embedding.h>

namespace refrain {

Embedding::Embedding(std::int64_t num_rows, std::int64_t width, const Init& init) {
  check(num_rows > 0 && width > 0, "Embedding: expected positive sizes, got ", num_rows, " rows of ", width);
  add_parameter("weight", weight, {num_rows, width}, init);
}

Tensor Embedding::operator()(const Tensor& indices) const {
  const ModuleScope scope = enter();
  return embedding(indices, weight);
}

}  // namespace refrain
