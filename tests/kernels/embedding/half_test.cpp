// Embedding tables in f16 and bf16.
#include <refrain/core/view.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/tests/support/half.h>

#include <array>

using namespace refrain;

namespace {

Tensor indices_of(std::int64_t count, std::int64_t size, std::uint64_t seed, DType dtype = DType::i64) {
  std::vector<std::int64_t> values;
  for (double v : random_values(count, seed, 0, double(size))) values.push_back(std::int64_t(v));
  return as(from_values(values, {count}), dtype);
}

Tensor gradient(const Tensor& grad_out, const Tensor& indices, std::int64_t rows, std::int64_t padding_idx) {
  const Guarded out(Shape{rows, grad_out.dim(-1)}, grad_out.dtype());
  const Tensor order = is_16_bit(grad_out.dtype()) ? empty({indices.numel()}, DType::i64) : Tensor();
  launch(EmbeddingBackward{.grad_out = grad_out, .indices = indices, .padding_idx = padding_idx, .out = out.tensor, .order = order});
  CHECK(out.is_intact());
  return out.tensor;
}

}  // namespace

TEST_CASE("embedding in 16 bits: rows are copied") {
  for (DType half : kHalves) {
    const Tensor table = random_tensor({17, 33}, half, 1), indices = indices_of(100, 17, 2), out = empty({100, 33}, half);
    launch(EmbeddingForward{.indices = indices, .weight = table, .out = out});
    for (std::int64_t i = 0; i < 100; ++i) {
      const std::int64_t row = indices.data<std::int64_t>()[i];
      CHECK(same_bits(view::slice(out, 0, i, i + 1), view::slice(table, 0, row, row + 1)));
    }
  }
}

// A row's k terms are added in f32, in order, then rounded: |y - s| <= u·|s| + (k - 1)·2^-24·Σ|terms|.
TEST_CASE("embedding backward in 16 bits: repeated indices are summed in f32, as in f32, and rounded once") {
  for (DType half : kHalves) {
    for (DType index : {DType::i64, DType::i32}) {
      for (const auto& sizes : std::vector<std::array<std::int64_t, 3>>{
               {0, 3, 4}, {1, 1, 1}, {33, 5, 31}, {1000, 3, 33}, {1000, 2000, 7}, {700, 50, 130}, {64, 10, 1000}, {5, 3, 0}}) {
        const std::int64_t count = sizes[0], rows = sizes[1], width = sizes[2];
        const Tensor indices = indices_of(count, rows, 3, index), g = random_tensor({count, width}, half, 4);
        for (std::int64_t padding_idx : {-1, 0}) {
          INFO(half << " " << count << " " << rows << " " << width << " " << padding_idx);
          const Tensor got = gradient(g, indices, rows, padding_idx);
          CHECK(num_different(got, as(gradient(as(g, DType::f32), indices, rows, padding_idx), half)) == 0);
          std::vector<double> sums(std::size_t(rows * width)), magnitudes(sums.size()), values = g.to_vector<double>();
          const std::vector<std::int64_t> at = indices.to_vector<std::int64_t>();
          for (std::int64_t i = 0; i < count; ++i) {
            if (at[std::size_t(i)] == padding_idx) continue;
            for (std::int64_t c = 0; c < width; ++c) {
              const double v = values[std::size_t(i * width + c)];
              sums[std::size_t(at[std::size_t(i)] * width + c)] += v;
              magnitudes[std::size_t(at[std::size_t(i)] * width + c)] += std::abs(v);
            }
          }
          CHECK(num_outside(got, sums, [&](std::size_t i, double e) {
                  return roundoff_of(half) * std::abs(e) + double(count) * 0x1p-24 * magnitudes[i] + underflow_of(half);
                }) == 0);
        }
      }
    }
    // A token that fills the batch: in 16 bits a running sum of ones would stop at 256 or 2,048; partial sums pass 65,504.
    const Tensor same = zeros({8192}, DType::i64);
    CHECK(gradient(full({8192, 3}, 1, half), same, 2, -1).to_vector<double>() == std::vector<double>{8192, 8192, 8192, 0, 0, 0});
    const Tensor g = full({4, 2}, 60000, half);
    copy_values(view::slice(g, 0, 2, 4), full({2, 2}, -60000, half));
    CHECK(gradient(g, zeros({4}, DType::i64), 1, -1).to_vector<double>() == std::vector<double>{0, 0});
    const Tensor indices = indices_of(3000, 40, 7), grad = random_tensor({3000, 200}, half, 8);
    CHECK(same_on_all_threads([&] { return std::vector<Tensor>{gradient(grad, indices, 40, 3)}; }));
  }
}

TEST_CASE("embedding backward in 16 bits: the scratch for the order of rows is asked for, and a bad index named") {
  const Tensor out = zeros({2, 3}, DType::f16), g = zeros({2, 3}, DType::f16);
  const Tensor indices = from_values(std::vector<std::int64_t>{0, 2}, {2});
  CHECK(message_of([&] { launch(EmbeddingBackward{.grad_out = g, .indices = indices, .padding_idx = -1, .out = out}); }) ==
        "embedding_backward: order must be given for a f16 table");
  CHECK(message_of([&] {
          launch(EmbeddingBackward{.grad_out = g, .indices = indices, .padding_idx = -1, .out = out, .order = empty({2}, DType::i64)});
        }) == "embedding_backward: index 1 must be 0 … 1, got 2");
}
