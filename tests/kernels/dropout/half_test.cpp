// Dropout in f16 and bf16, and f32 mixed with them.
#include <refrain/core/view.h>
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/tests/support/half.h>

using namespace refrain;

namespace {

const RandomKey kKey{.seed = 77, .step = 3, .call = 5, .purpose = RandomPurpose::user};

Tensor dropped(const Tensor& x, const Tensor& residual, double p, std::int64_t first, DType dtype) {
  const Guarded out(x.shape(), dtype);
  launch(Dropout{.x = x, .residual = residual, .p = p, .key = kKey, .first_element = first, .out = out.tensor});
  CHECK(out.is_intact());
  return out.tensor;
}

}  // namespace

// y = round(x·s) with s = 1 / (1 - p) in f32: |y - x / (1 - p)| <= (u + 2·2^-24)·|x| / (1 - p).
TEST_CASE("dropout in 16 bits: the mask of f32, kept values rounded once") {
  for (DType half : kHalves) {
    for (std::int64_t n : {0, 1, 3, 31, 32, 33, 511, 512, 513, 1000, 40001}) {
      const Tensor x = random_tensor({n}, half, 1, 0.5, 4), residual = random_tensor({n}, half, 2),
                   wide_residual = random_tensor({n}, DType::f32, 2);
      const Tensor wide = as(x, DType::f32);
      for (double p : {0.0, 0.1, 0.5, 1.0}) {
        for (std::int64_t first : {0, 1, 4, 1026}) {
          INFO(half << " " << n << " " << p << " " << first);
          const Tensor y = dropped(x, {}, p, first, half);
          CHECK(same_bits(y, as(dropped(wide, {}, p, first, DType::f32), half)));
          CHECK(same_bits(dropped(x, residual, p, first, half), as(dropped(wide, as(residual, DType::f32), p, first, DType::f32), half)));
          // Mixed: x or the residual in 16 bits, the result in f32; and a gradient of f32 for an x of 16 bits.
          CHECK(same_bits(dropped(x, wide_residual, p, first, DType::f32), dropped(wide, wide_residual, p, first, DType::f32)));
          CHECK(same_bits(dropped(wide_residual, x, p, first, DType::f32), dropped(wide_residual, wide, p, first, DType::f32)));
          CHECK(same_bits(dropped(wide_residual, {}, p, first, half), as(dropped(wide_residual, {}, p, first, DType::f32), half)));
          std::vector<double> expected = x.to_vector<double>();
          for (std::int64_t i = 0; i < n; ++i) {
            const bool keep = p < 1 && kKey.word(std::uint64_t(first + i)) >= drop_threshold(p);
            expected[std::size_t(i)] = keep ? expected[std::size_t(i)] / (1 - p) : 0;
          }
          CHECK(num_outside(y, expected, [&](std::size_t, double e) { return (roundoff_of(half) + 2 * 0x1p-24) * e; }) == 0);
        }
      }
    }
    const Tensor x = random_tensor({100003}, half, 1), residual = random_tensor({100003}, DType::f32, 2);
    CHECK(same_on_all_threads([&] { return std::vector<Tensor>{dropped(x, {}, 0.3, 5, half), dropped(x, residual, 0.3, 0, DType::f32)}; }));
  }
  // Infinite values are dropped, not turned into NaN; p = 1 drops all.
  CHECK(dropped(full({40}, HUGE_VAL, DType::f16), {}, 1, 0, DType::f16).to_vector<double>() == std::vector<double>(40, 0));
  for (double v : dropped(full({40}, HUGE_VAL, DType::bf16), {}, 0.5, 0, DType::bf16).to_vector<double>()) CHECK((v == 0 || v == HUGE_VAL));
}

TEST_CASE("stochastic depth in 16 bits: whole samples, rounded once") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{0, 3}, Shape{1}, Shape{33}, Shape{7, 31}, Shape{50, 1000}}) {
      const Tensor x = random_tensor(shape, half, 1);
      const auto run = [&](const Tensor& in, double p) {
        const Guarded out(shape, in.dtype());
        launch(StochasticDepth{.x = in, .p = p, .key = kKey, .first_sample = 6, .out = out.tensor});
        CHECK(out.is_intact());
        return out.tensor;
      };
      for (double p : {0.0, 0.4, 1.0}) {
        INFO(half << " " << shape << " " << p);
        CHECK(same_bits(run(x, p), as(run(as(x, DType::f32), p), half)));
      }
      CHECK(same_on_all_threads([&] { return std::vector<Tensor>{run(x, 0.4)}; }));
    }
  }
}

TEST_CASE("dropout: dtypes that do not mix are refused") {
  const auto run = [](DType x, DType residual, DType out) {
    return message_of([&] {
      launch(
          Dropout{.x = zeros({3}, x), .residual = zeros({3}, residual), .p = 0.5, .key = kKey, .first_element = 0, .out = zeros({3}, out)});
    });
  };
  CHECK(run(DType::f16, DType::bf16, DType::f32) == "dropout: residual must be f16, or f32 with a 16-bit type, got bf16");
  CHECK(!run(DType::f32, DType::bf16, DType::f16).empty());
  CHECK(!run(DType::f64, DType::f32, DType::f64).empty());
  CHECK(!run(DType::f32, DType::f32, DType::f64).empty());
  CHECK(message_of([] {
          launch(StochasticDepth{.x = zeros({3}, DType::f16), .p = 0.5, .key = kKey, .first_sample = 0, .out = zeros({3}, DType::f32)});
        }) == "stochastic_depth: out must be f16, got f32");
}
