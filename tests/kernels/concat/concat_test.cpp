#include <refrain/core/view.h>
#include <refrain/kernels/concat/concat.h>
#include <refrain/tests/kernels/elementwise/layouts.h>

using namespace refrain;

TEST_CASE("concat: slices of the result are the inputs, along every dim and from any layout") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (int dim = 0; dim < 3; ++dim) {
      std::vector<Tensor> parts;
      std::int64_t total = 0;
      for (std::int64_t extent : {1, 0, 5, 33}) {
        Shape shape{3, 4, 6};
        shape[dim] = extent;
        for (const auto& [name, layout] : layouts_of(random_tensor(shape, dtype, std::uint64_t(extent) + 1))) {
          parts.push_back(layout);
          total += extent;
        }
      }
      Shape shape{3, 4, 6};
      shape[dim] = total;
      const std::vector<In> inputs(parts.begin(), parts.end());
      const Tensor out = full(shape, -77, dtype);
      launch(Concat{.inputs = inputs, .dim = dim, .out = out});
      std::int64_t at = 0;
      for (const Tensor& part : parts) {
        CHECK(same_bits(view::slice(out, dim, at, at + part.dim(dim)), part));
        at += part.dim(dim);
      }
    }
  }
}

TEST_CASE("concat: an expanded class token goes in front of every sample") {
  const Tensor token = random_tensor({1, 1, 8}, DType::f32, 1), patches = random_tensor({5, 4, 8}, DType::f32, 2),
               out = empty({5, 5, 8}, DType::f32);
  const std::vector<In> inputs{In(view::expand(token, {5, 1, 8})), In(patches)};
  launch(Concat{.inputs = inputs, .dim = 1, .out = out});
  CHECK(same_bits(view::slice(out, 1, 0, 1), view::expand(token, {5, 1, 8})));
  CHECK(same_bits(view::slice(out, 1, 1, 5), patches));
}

TEST_CASE("concat: f16 and bf16 parts of an f32 whole are widened as they are copied") {
  for (DType half : {DType::f16, DType::bf16}) {
    const Tensor token = random_tensor({1, 1, 33}, DType::f32, 1), patches = random_tensor({5, 4, 33}, half, 2),
                 out = full({5, 6, 33}, -77, DType::f32);
    for (const auto& [name, layout] : layouts_of(patches)) {
      const std::vector<In> inputs{In(view::expand(token, {5, 1, 33})), In(layout), In(view::expand(token, {5, 1, 33}))};
      launch(Concat{.inputs = inputs, .dim = 1, .out = out});
      INFO(half << " " << name);
      CHECK(same_bits(view::slice(out, 1, 0, 1), view::expand(token, {5, 1, 33})));
      CHECK(view::slice(out, 1, 1, 5).to_vector<double>() == patches.to_vector<double>());
      CHECK(same_bits(view::slice(out, 1, 5, 6), view::expand(token, {5, 1, 33})));
    }
    const std::vector<In> narrow{In(patches), In(patches)};
    const Tensor same = empty({5, 8, 33}, half);
    launch(Concat{.inputs = narrow, .dim = 1, .out = same});
    CHECK(same_bits(view::slice(same, 1, 4, 8), patches));
    CHECK_THROWS_AS(launch(Concat{.inputs = narrow, .dim = 1, .out = empty({5, 8, 33}, DType::f64)}), InvalidArgument);
  }
}

TEST_CASE("concat: inputs that do not fit are refused") {
  const auto attempt = [](const std::vector<Tensor>& parts, int dim, const Tensor& out) {
    const std::vector<In> inputs(parts.begin(), parts.end());
    launch(Concat{.inputs = inputs, .dim = dim, .out = out});
  };
  const Tensor a = zeros({2, 3}, DType::f32), out = zeros({4, 3}, DType::f32);
  CHECK_THROWS_AS(attempt({}, 0, out), InvalidArgument);
  CHECK_THROWS_AS(attempt({a}, 0, out), InvalidArgument);
  CHECK_THROWS_AS(attempt({a, a}, 2, out), InvalidArgument);
  CHECK_THROWS_AS(attempt({a, zeros({2, 3}, DType::f64)}, 0, out), InvalidArgument);
  CHECK_THROWS_AS(attempt({a, zeros({2, 4}, DType::f32)}, 0, out), InvalidArgument);
  CHECK_THROWS_AS(attempt({a, zeros({6}, DType::f32)}, 0, out), InvalidArgument);
}
