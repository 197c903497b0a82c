// Embedding: rows by index and the table's gradient.
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

Tensor indices_of(const std::vector<std::int64_t>& values, DType dtype, const Shape& shape) {
  if (dtype == DType::i64) return from_values(values, shape);
  return from_values(std::vector<std::int32_t>(values.begin(), values.end()), shape);
}

Tensor forward(const Tensor& indices, const Tensor& weight) {
  Shape shape = indices.shape();
  shape.push_back(weight.dim(1));
  const Tensor out = empty(shape, weight.dtype());
  launch(EmbeddingForward{.indices = indices, .weight = weight, .out = out});
  return out;
}

Tensor backward(const Tensor& grad_out, const Tensor& indices, std::int64_t rows, std::int64_t padding_idx = -1) {
  const Tensor grad = full({rows, grad_out.dim(-1)}, 7, grad_out.dtype());
  launch(EmbeddingBackward{.grad_out = grad_out, .indices = indices, .padding_idx = padding_idx, .out = grad});
  return grad;
}

}  // namespace

TEST_CASE("embedding: forward copies rows and backward adds them, in the order of the indices") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (DType index_type : {DType::i64, DType::i32}) {
      for (std::int64_t width : {0, 1, 31, 64, 100, 1000}) {
        for (std::int64_t count : {0, 1, 33, 700}) {
          const std::int64_t rows = 50;
          const Tensor weight = random_tensor({rows, width}, dtype, 1), grad_out = random_tensor({count, width}, dtype, 2);
          std::vector<std::int64_t> values;
          for (std::int64_t i = 0; i < count; ++i) values.push_back(i * i % 23);
          const Tensor indices = indices_of(values, index_type, {count});
          const auto w = weight.to_vector<double>(), g = grad_out.to_vector<double>();
          std::vector<double> out, grad(w.size());
          const std::size_t D = std::size_t(width);
          for (std::size_t i = 0; i < values.size(); ++i) {
            for (std::size_t c = 0; c < D; ++c) {
              double& sum = grad[std::size_t(values[i]) * D + c];
              out.push_back(w[std::size_t(values[i]) * D + c]);
              // Rounded after each addition as the kernel does: equal order gives equal bits.
              sum = dtype == DType::f32 ? double(float(sum) + float(g[i * D + c])) : sum + g[i * D + c];
            }
          }
          const bool same_rows = forward(indices, weight).to_vector<double>() == out,
                     same_sums = backward(grad_out, indices, rows).to_vector<double>() == grad;
          CHECK(same_rows);
          CHECK(same_sums);
        }
      }
    }
  }
}

TEST_CASE("embedding: indices of any shape, and the padding row gets no gradient") {
  const Tensor weight = tensor_of({1, 2, 3, 4, 5, 6}, {3, 2}, DType::f32), indices = indices_of({2, 0, 2, 1}, DType::i64, {2, 1, 2});
  const Tensor out = forward(indices, weight);
  CHECK(out.shape() == Shape{2, 1, 2, 2});
  CHECK(out.to_vector<double>() == std::vector<double>{5, 6, 1, 2, 5, 6, 3, 4});
  CHECK(backward(out, indices, 3, 2).to_vector<double>() == std::vector<double>{1, 2, 3, 4, 0, 0});
  CHECK(forward(indices_of({1}, DType::i64, {}), weight).shape() == Shape{2});
}

TEST_CASE("embedding: an index out of range is named before anything is written") {
  const Tensor weight = zeros({5, 3}, DType::f32), out = full({3, 3}, 8, DType::f32), grad = full({5, 3}, 8, DType::f32);
  for (std::int64_t bad : {5, -1, 2000000000}) {
    for (DType index_type : {DType::i64, DType::i32}) {
      const Tensor indices = indices_of({0, 1, bad}, index_type, {3});
      CHECK_THROWS_WITH(launch(EmbeddingForward{.indices = indices, .weight = weight, .out = out}),
                        "embedding: index 2 must be 0 … 4, got " + std::to_string(bad));
      CHECK_THROWS_AS(launch(EmbeddingBackward{.grad_out = out, .indices = indices, .padding_idx = -1, .out = grad}), InvalidArgument);
    }
  }
  CHECK(out.to_vector<double>() == std::vector<double>(9, 8.0));
  CHECK(grad.to_vector<double>() == std::vector<double>(15, 8.0));
  CHECK_THROWS_WITH(forward(zeros({2}, DType::f32), weight), "embedding: indices must be i64 or i32, got f32");
}

TEST_CASE("embedding: results are the same on 1, 2 and 4 threads") {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < 3000; ++i) values.push_back(i * 7919 % 400);
  const Tensor indices = indices_of(values, DType::i64, {3000}), weight = random_tensor({400, 200}, DType::f32, 1),
               grad = random_tensor({3000, 200}, DType::f32, 2);
  CHECK(same_on_all_threads([&] { return std::vector<Tensor>{forward(indices, weight), backward(grad, indices, 400)}; }));
}

TEST_CASE("embedding: misaligned tensors, nothing written outside") {
  const Tensor indices = indices_of({2, 0, 2, 1}, DType::i64, {4});
  for (std::int64_t width : {1, 7, 65}) {
    const Guarded weight(random_tensor({3, width}, DType::f32, 1)), out({4, width}, DType::f32), grad({3, width}, DType::f32);
    launch(EmbeddingForward{.indices = indices, .weight = weight.tensor, .out = out.tensor});
    launch(EmbeddingBackward{.grad_out = out.tensor, .indices = indices, .padding_idx = -1, .out = grad.tensor});
    CHECK((weight.is_intact() && out.is_intact() && grad.is_intact()));
    CHECK(same_bits(out.tensor, forward(indices, clone(weight.tensor))));
    CHECK(same_bits(grad.tensor, backward(clone(out.tensor), indices, 3)));
  }
}
