#include <refrain/core/view.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

std::pair<Tensor, Tensor> max_of(const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape.erase(dim);
  const Tensor out = empty(shape, x.dtype()), indices = empty(shape, DType::i64);
  launch(Max{.x = x, .dim = dim, .out = out, .indices = indices});
  return {out, indices};
}

}  // namespace

TEST_CASE("max: values and first indices along every dim, at hostile sizes") {
  for (std::int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 1000}) {
    for (DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor({3, n, 5}, dtype, 1);
      for (int dim = 0; dim < 3; ++dim) {
        const Tensor moved = clone(view::transpose(x, dim, 2));  // the dim last
        const auto [values, indices] = max_of(x, dim);
        const auto [moved_values, moved_indices] = max_of(moved, 2);
        const std::vector<double> data = moved.to_vector<double>();
        const std::int64_t extent = moved.dim(2);
        for (std::int64_t row = 0; row < moved.numel() / extent; ++row) {
          std::int64_t best = 0;
          for (std::int64_t i = 1; i < extent; ++i) {
            if (data[std::size_t(row * extent + i)] > data[std::size_t(row * extent + best)]) best = i;
          }
          CHECK(moved_indices.to_vector<std::int64_t>()[std::size_t(row)] == best);
          CHECK(moved_values.to_vector<double>()[std::size_t(row)] == data[std::size_t(row * extent + best)]);
        }
        if (dim == 1) {  // without dim 1 both are [3, 5]
          CHECK(same_bits(values, moved_values));
          CHECK(same_bits(indices, moved_indices));
        }
      }
    }
  }
}

TEST_CASE("max: the first of equals wins, NaN wins over everything") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::vector<float> row(40, 1.0f);
  row[7] = row[9] = 5;
  CHECK(max_of(from_values(row, {1, 40}), 1).second.item() == 7);
  row[30] = row[33] = nan;
  row[3] = inf;
  CHECK(max_of(from_values(row, {1, 40}), 1).second.item() == 30);
  CHECK(std::isnan(max_of(from_values(row, {40, 1}), 0).first.item()));
  CHECK(max_of(from_values(row, {40, 1}), 0).second.item() == 30);
  CHECK(max_of(from_values(std::vector<float>{-inf, -inf, -inf}, {3}), 0).second.item() == 0);
  CHECK(max_of(from_values(std::vector<float>{-0.5f, nan, 2}, {3}), 0).second.item() == 1);
}

TEST_CASE("max_backward: the gradient lands on the index alone") {
  const Tensor x = random_tensor({4, 6, 3}, DType::f32, 8);
  for (int dim = 0; dim < 3; ++dim) {
    const auto [values, indices] = max_of(x, dim);
    const Tensor grad = empty_like(x);
    launch(MaxBackward{.grad_out = values, .indices = indices, .dim = dim, .out = grad});
    const auto [grad_values, grad_indices] = max_of(grad, dim);
    const std::vector<float> v = x.to_vector<float>(), g = grad.to_vector<float>();
    std::int64_t num_set = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (g[i] != 0) {
        CHECK(g[i] == v[i]);
        ++num_set;
      }
    }
    CHECK(num_set == values.numel());
  }
}

TEST_CASE("max: either result may be left out") {
  const Tensor x = random_tensor({4, 9}, DType::f32, 2), indices = empty({4}, DType::i64), out = empty({4}, DType::f32);
  const auto [expected, expected_indices] = max_of(x, 1);
  launch(Max{.x = x, .dim = 1, .out = without_bytes({4}, DType::f32, x.device()), .indices = indices});
  CHECK(same_bits(indices, expected_indices));
  launch(Max{.x = x, .dim = 1, .out = out});
  CHECK(same_bits(out, expected));
}

TEST_CASE("max: nothing along the dim is refused") {
  CHECK_THROWS_AS(launch(Max{.x = zeros({3, 0}, DType::f32), .dim = 1, .out = zeros({3}, DType::f32)}), InvalidArgument);
  CHECK_THROWS_AS(launch(Max{.x = zeros({3, 2}, DType::f32), .dim = 2, .out = zeros({3}, DType::f32)}), InvalidArgument);
}
