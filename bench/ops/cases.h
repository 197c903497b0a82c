// The kernels that bench_ops measures. A new family is a file of cases and one line in families().
#pragma once

#include <refrain/kernels/kernel.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace refrain::bench {

// A kernel whose tensors exist: what one launch costs, and the launch.
struct Prepared {
  Cost cost;
  std::function<void()> launch;
};

// Tensors are made only when the case is chosen.
struct Case {
  std::string name;  // family/kernel/size
  std::function<Prepared()> prepare;
};

// The kernel, with the tensors that its arguments point into kept alive.
template <Kernel K>
Prepared prepared(const K& kernel, std::vector<Tensor> keep) {
  return {cost(kernel), [kernel, keep = std::move(keep)] { launch(kernel); }};
}

// Where and in what dtype the cases' tensors are made; chosen once, before any is.
struct Setting {
  Device device = Device::cpu();
  DType dtype = DType::f32;
  // Sizes of the reference models at the batches a GPU trains them with, instead of those for a few cores.
  bool is_large() const { return device.target() == DeviceKind::cuda; }
};
Setting& setting();

// Values in [-1, 1), the same on every run, of the setting's dtype or another.
Tensor uniform(const Shape& shape);
Tensor uniform(const Shape& shape, DType dtype);
Tensor indices(const Shape& shape, std::int64_t below);
// Uninitialised.
Tensor space(const Shape& shape);
Tensor space(const Shape& shape, DType dtype);
// For a kernel's scratch of so many elements: undefined where it needs none.
Tensor scratch_space(std::int64_t numel, DType dtype);

std::vector<Case> matmul_cases();
std::vector<Case> convolution_cases();
std::vector<Case> attention_cases();
std::vector<Case> row_cases();          // norms, softmax, losses, embedding
std::vector<Case> elementwise_cases();  // elementwise, reductions, dropout, conversion, updates

inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto* family : {matmul_cases, convolution_cases, attention_cases, row_cases, elementwise_cases}) {
    for (Case& c : family()) all.push_back(std::move(c));
  }
  return all;
}

}  // namespace refrain::bench
