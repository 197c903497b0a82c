// Concatenation on CUDA against the CPU's.
#include <refrain/kernels/concat/concat.h>
#include <refrain/tests/cuda/layouts.h>

using namespace refrain;

namespace {

void check_concat(const std::vector<Tensor>& parts, int dim, DType dtype) {
  Shape shape = parts[0].shape();
  shape[dim] = 0;
  std::vector<In> inputs;
  for (const Tensor& part : parts) shape[dim] += part.shape()[dim], inputs.emplace_back(part);
  const Tensor expected = full(shape, 1, dtype);
  launch(Concat{.inputs = inputs, .dim = dim, .out = expected});
  for (int layout = 0; layout < 5; ++layout) {
    std::vector<In> device_inputs;
    std::vector<Tensor> keep;
    for (const Tensor& part : parts) keep.push_back(in_layout(part, layout)), device_inputs.emplace_back(keep.back());
    INFO(shape << " along " << dim << ", layout " << layout << ", " << dtype);
    const CudaGuarded out(shape, dtype);
    launch(Concat{.inputs = device_inputs, .dim = dim, .out = out.tensor});
    CHECK(same_bits(on_cpu(out.tensor), expected));
    CHECK(out.is_intact());
  }
}

}  // namespace

TEST_CASE("cuda concat: every dim and dtype, empty parts too") {
  for (DType dtype : kAllDTypes) {
    for (int dim = 0; dim < 3; ++dim) {
      std::vector<Tensor> parts;
      for (std::int64_t extent : {3, 0, 1, 8}) {
        Shape shape{2, 5, 16};
        shape[dim] = extent;
        parts.push_back(as(random_tensor(shape, DType::f64, std::uint64_t(extent), 0, 99), dtype));
      }
      check_concat(parts, dim, dtype);
    }
  }
}

TEST_CASE("cuda concat: 16-bit parts of an f32 whole are widened") {
  for (DType half : kHalves) {
    for (int dim = 0; dim < 2; ++dim) {
      check_concat({random_tensor({4, 4}, half, 1), random_tensor({4, 4}, DType::f32, 2), random_tensor({4, 4}, half, 3)}, dim,
                   DType::f32);
    }
  }
}
