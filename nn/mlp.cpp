#include <refrain/nn/mlp.h>

namespace refrain {

Mlp::Mlp(std::int64_t width, std::int64_t hidden, const MlpOptions& options) : gelu_(options.gelu) {
  fc1 = add<Linear>("fc1", width, hidden, options.fc1);
  dropout = add<Dropout>("dropout", options.dropout);
  fc2 = add<Linear>("fc2", hidden, width, options.fc2);
}

Tensor Mlp::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  return (*fc2)((*dropout)(gelu((*fc1)(x), gelu_)));
}

}  // namespace refrain
