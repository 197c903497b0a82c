// Tensors of one shape and the same values in different memory layouts.
#pragma once

#include <refrain/core/view.h>
#include <refrain/tests/support/values.h>

#include <string>
#include <utility>
#include <vector>

namespace refrain {

// Copies of t: contiguous, misaligned by one element, transposed in memory, with gaps, in reverse order of dims.
inline std::vector<std::pair<std::string, Tensor>> layouts_of(const Tensor& t) {
  std::vector<std::pair<std::string, Tensor>> result{{"contiguous", clone(t)}};
  const auto add = [&](const std::string& name, const Tensor& view) {
    copy_values(view, t);
    result.emplace_back(name, view);
  };
  const Tensor longer = full({t.numel() + 1}, 77, t.dtype());
  add("misaligned", view::reshape(view::slice(longer, 0, 1, t.numel() + 1), t.shape()));
  const int dims = t.num_dims();
  if (dims == 0) return result;
  Shape gaps = t.shape();
  gaps[dims - 1] = gaps[dims - 1] * 2 + 1;
  add("gaps", view::slice(full(gaps, 77, t.dtype()), -1, 1, t.shape()[dims - 1] * 2 + 1, 2));
  Dims reversed;
  Shape shape;
  for (int i = dims - 1; i >= 0; --i) reversed.push_back(i), shape.push_back(t.shape()[i]);
  add("reversed", view::permute(full(shape, 77, t.dtype()), reversed));
  return result;
}

}  // namespace refrain
