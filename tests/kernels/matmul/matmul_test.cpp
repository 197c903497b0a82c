#include <refrain/core/view.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

TEST_CASE("matmul kernel: alpha and beta scale product and output, batches broadcast") {
  const Tensor a = random_tensor({2, 1, 5, 7}, DType::f64, 1), b = random_tensor({3, 7, 4}, DType::f64, 2),
               out = full({2, 3, 5, 4}, 10, DType::f64);
  launch(Matmul{.a = a, .b = b, .out = out, .alpha = -2, .beta = 0.5});
  std::vector<double> expected;
  const std::vector<double> as = a.to_vector<double>(), bs = b.to_vector<double>();
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      for (std::size_t r = 0; r < 5; ++r)
        for (std::size_t c = 0; c < 4; ++c) {
          double sum = 0;
          for (std::size_t p = 0; p < 7; ++p) sum += as[(i * 5 + r) * 7 + p] * bs[(j * 7 + p) * 4 + c];
          expected.push_back(-2 * sum + 5);
        }
  CHECK(error_against(out, expected) < 1e-14);
}

TEST_CASE("gemm_layout: reads unit strides either way and refuses overlap") {
  CHECK(gemm_layout(3, 4, 4, 1)->ld == 4);
  CHECK_FALSE(gemm_layout(3, 4, 9, 1)->transposed);
  CHECK(gemm_layout(3, 4, 1, 3)->transposed);
  CHECK(gemm_layout(1, 4, 0, 1)->ld == 4);
  CHECK(gemm_layout(4, 1, 3, 5)->ld == 3);
  CHECK_FALSE(gemm_layout(3, 4, 0, 1).has_value());
  CHECK_FALSE(gemm_layout(3, 4, 8, 2).has_value());
  CHECK_FALSE(gemm_layout(3, 4, 3, 1).has_value());
}

TEST_CASE("linear kernels: work in plans, and leave out outputs without bytes") {
  const Device plan = Device::plan();
  const Tensor x = empty({2000, 64}, DType::f32, plan), weight = empty({64, 64}, DType::f32, plan),
               out = empty({2000, 64}, DType::f32, plan);
  const Cost before = cost_meter().total;
  launch(LinearForward{.x = x, .weight = weight, .bias = {}, .out = out, .pre_activation = {}});
  CHECK(cost_meter().total.flops - before.flops == 2.0 * 2000 * 64 * 64);

  const Tensor real = random_tensor({2, 3}, DType::f32, 1), w = random_tensor({4, 3}, DType::f32, 2);
  launch(LinearForward{.x = real, .weight = w, .bias = {}, .out = without_bytes({2, 4}, DType::f32, Device::cpu()), .pre_activation = {}});
}

TEST_CASE("linear kernels: a fused activation equals the same without it followed by the activation, and the bias gradient a column sum") {
  const Tensor x = random_tensor({50, 33}, DType::f32, 1), weight = random_tensor({70, 33}, DType::f32, 2),
               bias = random_tensor({70}, DType::f32, 3);
  const Tensor plain = empty({50, 70}, DType::f32), fused = empty({50, 70}, DType::f32), pre = empty({50, 70}, DType::f32);
  launch(LinearForward{.x = x, .weight = weight, .bias = bias, .out = plain, .pre_activation = {}});
  launch(LinearForward{.x = x, .weight = weight, .bias = bias, .out = fused, .activation = Activation::relu, .pre_activation = pre});
  CHECK(same_bits(plain, pre));
  const std::vector<float> before = plain.to_vector<float>(), after = fused.to_vector<float>();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] == std::max(0.0f, before[i]));

  for (std::int64_t rows : {1, 50, 3000}) {
    const Tensor g = random_tensor({rows, 70}, DType::f32, 4), in = random_tensor({rows, 33}, DType::f32, 5);
    const Tensor grad_weight = empty({70, 33}, DType::f32), grad_bias = empty({70}, DType::f32), alone = empty({70}, DType::f32);
    launch(LinearBackwardWeight{.grad_out = g, .x = in, .out = grad_weight, .grad_bias = grad_bias,
                                .scratch = empty({LinearBackwardWeight::scratch_size(DeviceKind::cpu, rows, 70, 33, DType::f32)}, DType::f32)});
    launch(LinearBackwardBias{.grad_out = g, .out = alone});
    std::vector<double> sums(70);
    const std::vector<double> gs = g.to_vector<double>();
    for (std::size_t i = 0; i < gs.size(); ++i) sums[i % 70] += gs[i];
    CHECK(error_against(grad_bias, sums) < 1e-6);
    CHECK(error_against(alone, sums) < 1e-6);
  }
}

TEST_CASE("matmul and linear kernels: refuse what does not fit, by name") {
  const Tensor a = random_tensor({2, 3}, DType::f32, 1), b = random_tensor({3, 4}, DType::f32, 2), out = empty({2, 4}, DType::f32);
  CHECK_THROWS_WITH(launch(Matmul{.a = a, .b = view::transpose(b, 0, 1), .out = out}), Catch::Contains("matmul: columns of a"));
  CHECK_THROWS_WITH(launch(Matmul{.a = a, .b = b, .out = empty({4, 2}, DType::f32)}),
                    Catch::Contains("matmul: out must be [2, 4], got [4, 2]"));
  CHECK_THROWS_AS(launch(Matmul{.a = view::expand(view::select(a, 0, 0), {2, 3}), .b = b, .out = out}), InvalidArgument);
  CHECK_THROWS_AS(launch(Matmul{.a = a, .b = random_tensor({3, 4}, DType::f64, 2), .out = out}), InvalidArgument);
  CHECK_THROWS_WITH(launch(LinearForward{.x = a, .weight = b, .bias = {}, .out = out, .pre_activation = {}}),
                    Catch::Contains("linear: x must be [..., 4], got [2, 3]"));
}
