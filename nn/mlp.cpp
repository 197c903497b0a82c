#include <refrain/nn/mlp.h>

#include <refrain/autograd/ops/mlp.h>

namespace refrain {

Mlp::Mlp(std::int64_t width, std::int64_t hidden, const MlpOptions& options) : gelu_(options.gelu), chunk_rows_(options.chunk_rows) {
  check(chunk_rows_ >= 0, "Mlp: expected chunk_rows >= 0, got ", chunk_rows_);
  fc1 = add<Linear>("fc1", width, hidden, options.fc1);
  dropout = add<Dropout>("dropout", options.dropout);
  fc2 = add<Linear>("fc2", hidden, width, options.fc2);
}

Tensor Mlp::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  if (chunk_rows_ > 0) {
    const double p = dropout->is_training() ? dropout->p() : 0;
    return chunked_mlp(x, fc1->weight, fc1->bias, fc2->weight, fc2->bias, {.gelu = gelu_, .dropout = p, .chunk_rows = chunk_rows_});
  }
  return (*fc2)((*dropout)(gelu((*fc1)(x), gelu_)));
}

}  // namespace refrain
