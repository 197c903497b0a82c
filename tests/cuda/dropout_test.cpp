// Dropout on CUDA: the CPU's bits, whatever the start in the random stream.
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/tests/cuda/layouts.h>

using namespace refrain;

namespace {

const RandomKey kKey{.seed = 0x123456789abcdef1u, .step = 7, .stage = 3, .call = 2};

}  // namespace

TEST_CASE("cuda dropout: every mix of dtypes, with and without a residual") {
  for (DType half : kFloats) {
    for (int mask = 0; mask < (is_16_bit(half) ? 8 : 1); ++mask) {
      const auto dtype_of_bit = [&](int bit) { return mask >> bit & 1 ? DType::f32 : half; };
      for (std::int64_t n : {0, 1, 31, 33, 1000}) {
        for (double p : {0.0, 0.1, 0.5, 1.0}) {
          for (bool has_residual : {false, true}) {
            INFO(half << " " << mask << " " << n << " " << p << " " << has_residual);
            const Tensor x = random_tensor({n}, dtype_of_bit(0), 1);
            const Tensor residual = has_residual ? random_tensor({n}, dtype_of_bit(1), 2) : Tensor();
            const Tensor expected = full({n}, 1, dtype_of_bit(2));
            launch(Dropout{.x = x, .residual = residual, .p = p, .key = kKey, .first_element = 4, .out = expected});
            const CudaGuarded out({n}, dtype_of_bit(2));
            launch(Dropout{
                .x = on_cuda(x), .residual = on_cuda(residual), .p = p, .key = kKey, .first_element = 4, .out = out.tensor});
            CHECK(num_different(on_cpu(out.tensor), expected) == 0);
            CHECK(out.is_intact());
          }
        }
      }
    }
  }
}

TEST_CASE("cuda dropout: any first element, alignment, and in place") {
  for (DType dtype : kFloats) {
    for (std::int64_t first : {0, 1, 2, 3, 5}) {
      for (std::int64_t shift : {0, 1, 2}) {
        const std::int64_t first_element = first + (shift == 2 ? std::int64_t{1} << 40 : 0);
        INFO(dtype << " " << first_element << " " << shift);
        const Tensor x = random_tensor({257}, dtype, 3), expected = full({257}, 1, dtype);
        launch(Dropout{.x = x, .p = 0.3, .key = kKey, .first_element = first_element, .out = expected});
        const CudaGuarded out(x, shift);
        launch(Dropout{.x = out.tensor, .p = 0.3, .key = kKey, .first_element = first_element, .out = out.tensor});
        CHECK(num_different(on_cpu(out.tensor), expected) == 0);
        CHECK(out.is_intact());
      }
    }
  }
}

TEST_CASE("cuda dropout: infinite values are dropped") {
  const Tensor x = full({64}, HUGE_VAL, DType::f32), out = poisoned({64}, DType::f32, cuda_device());
  launch(Dropout{.x = on_cuda(x), .p = 1, .key = kKey, .first_element = 0, .out = out});
  CHECK(same_bits(on_cpu(out), full({64}, 0, DType::f32)));
}

TEST_CASE("cuda stochastic_depth: whole samples are dropped as on the CPU") {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{0, 3}, Shape{1}, Shape{33}, Shape{9, 5}, Shape{3, 2, 700}, Shape{4, 1024}}) {
      for (double p : {0.0, 0.5, 1.0}) {
        for (std::int64_t shift : {0, 1}) {
          INFO(dtype << " " << shape << " " << p << " " << shift);
          const Tensor x = random_tensor(shape, dtype, 6), expected = full(shape, 1, dtype);
          launch(StochasticDepth{.x = x, .p = p, .key = kKey, .first_sample = 3, .out = expected});
          const CudaGuarded out(shape, dtype, shift);
          launch(StochasticDepth{.x = on_cuda(x), .p = p, .key = kKey, .first_sample = 3, .out = out.tensor});
          CHECK(num_different(on_cpu(out.tensor), expected) == 0);
          CHECK(out.is_intact());
        }
      }
    }
  }
}
