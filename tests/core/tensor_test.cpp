// Tensors, their views and copies.
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <numeric>

using namespace refrain;

namespace {

Tensor counting(const Shape& shape) {
  std::vector<std::int32_t> values(std::size_t(numel_of(shape)));
  std::iota(values.begin(), values.end(), 0);
  return from_values(values, shape);
}

std::vector<std::int32_t> values_of(const Tensor& t) { return t.to_vector<std::int32_t>(); }

}  // namespace

TEST_CASE("view: slices, selections and permutations read the base's bytes") {
  const Tensor t = counting({3, 4});
  CHECK(values_of(view::slice(t, 1, 1, 4, 2)) == std::vector<std::int32_t>{1, 3, 5, 7, 9, 11});
  CHECK(values_of(view::slice(t, 0, -2, 3)) == std::vector<std::int32_t>{4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(values_of(view::select(t, 0, -1)) == std::vector<std::int32_t>{8, 9, 10, 11});
  CHECK(values_of(view::transpose(t, 0, 1)) == std::vector<std::int32_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  CHECK(view::permute(counting({2, 3, 4}), {2, 0, 1}).shape() == Shape{4, 2, 3});
  CHECK(values_of(view::expand(view::slice(t, 1, 0, 1), {2, 3, 2})) == std::vector<std::int32_t>{0, 0, 4, 4, 8, 8, 0, 0, 4, 4, 8, 8});
  CHECK(view::select(t, 0, 1).storage() == t.storage());
}

TEST_CASE("view: reshape splits and merges what is contiguous and refuses the rest") {
  const Tensor t = counting({2, 3, 4});
  CHECK(view::reshape(t, {6, -1}).shape() == Shape{6, 4});
  CHECK(values_of(view::reshape(view::slice(t, 0, 1, 2), {3, 2, 2})).front() == 12);
  const Tensor turned = view::transpose(t, 0, 1);  // [3, 2, 4], strides 4 12 1
  CHECK(view::can_reshape(turned, {3, 2, 2, 2}));
  CHECK_FALSE(view::can_reshape(turned, {6, 4}));
  CHECK_THROWS_AS(view::reshape(turned, {6, 4}), InvalidArgument);
  CHECK_THROWS_AS(view::reshape(t, {5, 5}), InvalidArgument);
  CHECK_THROWS_AS(view::reshape(t, {-1, -1}), InvalidArgument);
  CHECK(view::reshape(counting({0, 3}), {3, 0}).numel() == 0);
  CHECK(view::reshape(counting({1}), Shape{}).num_dims() == 0);
}

TEST_CASE("view: what does not fit is refused") {
  const Tensor t = counting({3, 4});
  CHECK_THROWS_AS(view::slice(t, 2, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(view::slice(t, 0, 2, 1), InvalidArgument);
  CHECK_THROWS_AS(view::slice(t, 0, 0, 5), InvalidArgument);
  CHECK_THROWS_AS(view::slice(t, 0, 0, 3, 0), InvalidArgument);
  CHECK_THROWS_AS(view::select(t, 1, 4), InvalidArgument);
  CHECK_THROWS_AS(view::permute(t, {0, 0}), InvalidArgument);
  CHECK_THROWS_AS(view::expand(t, {3, 5}), InvalidArgument);
}

TEST_CASE("tensor: strided copies, fills and clones keep every value and bump the version") {
  const Tensor t = counting({3, 4});
  const Tensor turned = clone(view::transpose(t, 0, 1));
  CHECK(turned.is_contiguous());
  CHECK(values_of(turned) == values_of(view::transpose(t, 0, 1)));
  const std::uint64_t before = t.storage()->version();
  copy_values(view::slice(t, 1, 0, 2), view::slice(t, 1, 2, 4));
  CHECK(t.storage()->version() == before + 1);
  CHECK(values_of(t) == std::vector<std::int32_t>{2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11});
  fill_values(view::select(t, 1, 3), -1);
  CHECK(values_of(view::select(t, 0, 0)) == std::vector<std::int32_t>{2, 3, 2, -1});
  CHECK_THROWS_AS(copy_values(t, counting({4, 3})), InvalidArgument);
}

TEST_CASE("tensor: scalars, empty tensors and every dtype hold their values") {
  CHECK(full({}, 7, DType::i64).item() == 7);
  CHECK(zeros({0, 3}, DType::f32).to_vector<float>().empty());
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor t = full({2, 2}, 1, dtype);
    CHECK(t.bytes() == 4 * std::int64_t(size_of(dtype)));
    CHECK(t.to_vector<double>() == std::vector<double>(4, 1.0));
  }
  CHECK_THROWS_AS(counting({2}).item(), InvalidArgument);
  CHECK_THROWS_AS(counting({2}).data<float>(), InvalidArgument);
  CHECK_THROWS_AS(empty({-1}, DType::f32), InvalidArgument);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::f32), InvalidArgument);
}

TEST_CASE("tensor: conversions to integers saturate") {
  CHECK(full({}, 300, DType::u8).item() == 255);
  CHECK(full({}, -1, DType::u8).item() == 0);
  CHECK(full({}, 1e30, DType::i64).item() == 9223372036854775807.0);
  CHECK(full({}, std::nan(""), DType::i32).item() == 0);
  CHECK(full({}, -7.9, DType::i32).item() == -7);
  CHECK(full({}, 1e10, DType::f32).to_vector<std::int32_t>()[0] == 2147483647);
}

TEST_CASE("shape: broadcasting follows NumPy") {
  CHECK(broadcast_shapes({3, 1}, {4}, "add") == Shape{3, 4});
  CHECK(broadcast_shapes({}, {2}, "add") == Shape{2});
  CHECK(broadcast_shapes({0}, {1}, "add") == Shape{0});
  CHECK_THROWS_WITH(broadcast_shapes({2, 3}, {2}, "add"), "add: shapes [2, 3] and [2] do not broadcast");
}
