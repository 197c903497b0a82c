// The linear layer's kernels on CUDA against the CPU's.
#include <refrain/tests/cuda/product_cases.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr GemmEngine kEngines[] = {GemmEngine::builtin, GemmEngine::automatic};

struct Case {
  std::int64_t rows, in, out;
};
// The activations' formulas are the CPU's, which flushes factors below the least normal number to zero.
bool same_but_for_tiny(const Tensor& got, const Tensor& expected) {
  const std::vector<double> a = on_cpu(got).to_vector<double>(), b = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(std::abs(a[i]) < 40 * 0x1p-126 && std::abs(b[i]) < 40 * 0x1p-126)) return false;
  }
  return true;
}

const Case kCases[] = {{1, 1, 1}, {33, 40, 72}, {70, 31, 65}, {64, 64, 8}, {0, 4, 8}, {5, 0, 8}};

}  // namespace

TEST_CASE("cuda linear: whole numbers have the CPU's bits with every bias and activation, and the pre-activation too") {
  for (const Case& c : kCases)
    for (DType dtype : kFloatingDtypes)
      for (int bias_kind = 0; bias_kind < 3; ++bias_kind)
        for (Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh})
          for (bool wants_pre : {false, true}) {
            if (bias_kind == 2 && !is_16_bit(dtype)) continue;
            const Tensor x = whole_numbers({c.rows, c.in}, dtype, 1), weight = whole_numbers({c.out, c.in}, dtype, 2);
            const Tensor bias = bias_kind == 0 ? Tensor() : whole_numbers({c.out}, bias_kind == 1 ? dtype : DType::f32, 3);
            const Shape shape{c.rows, c.out};
            const Tensor expected = full(shape, std::nan(""), dtype), expected_pre = full(shape, std::nan(""), dtype);
            launch(LinearForward{.x = x, .weight = weight, .bias = bias, .out = expected, .activation = activation, .pre_activation = expected_pre,
                                 .engine = GemmEngine::builtin});
            for (GemmEngine engine : kEngines) {
              INFO(c.rows << " x " << c.in << " x " << c.out << " " << dtype << ", bias " << bias_kind << ", activation " << int(activation) << ", engine " << int(engine));
              const std::int64_t shift = wants_pre ? 1 : 0;
              const CudaGuarded out(shape, dtype, shift), pre(shape, dtype, shift);
              launch(LinearForward{.x = on_cuda(x), .weight = on_cuda(weight), .bias = on_cuda(bias), .out = out.tensor, .activation = activation,
                                   .pre_activation = wants_pre ? pre.tensor : Tensor(), .workspace = product_workspace(c.rows, c.out, c.in), .engine = engine});
              if (activation == Activation::none || activation == Activation::relu) {
                CHECK(same_bits(on_cpu(out.tensor), expected));
              } else {
                CHECK(same_but_for_tiny(out.tensor, expected));
              }
              if (wants_pre) CHECK(same_bits(on_cpu(pre.tensor), expected_pre));
              CHECK((out.is_intact() && pre.is_intact()));
            }
          }
}

TEST_CASE("cuda linear: gradients of whole numbers have the CPU's bits, with and without a workspace") {
  for (const Case& c : kCases)
    for (DType dtype : kFloatingDtypes)
      for (bool is_wide : {false, true})
        for (bool has_workspace : {false, true}) {
          if (is_wide && !is_16_bit(dtype)) continue;
          const DType result = is_wide ? DType::f32 : dtype;
          const Tensor x = whole_numbers({c.rows, c.in}, dtype, 1), weight = whole_numbers({c.out, c.in}, dtype, 2), grad = whole_numbers({c.rows, c.out}, dtype, 3);
          const Tensor grad_x = full({c.rows, c.in}, std::nan(""), dtype), grad_weight = full({c.out, c.in}, std::nan(""), result);
          const Tensor grad_bias = full({c.out}, std::nan(""), result);
          launch(LinearBackwardInput{.grad_out = grad, .weight = weight, .out = grad_x, .engine = GemmEngine::builtin});
          launch(LinearBackwardWeight{.grad_out = grad, .x = x, .out = grad_weight, .grad_bias = grad_bias, .scratch = {}, .engine = GemmEngine::builtin});
          for (GemmEngine engine : kEngines) {
            INFO(c.rows << " x " << c.in << " x " << c.out << " " << dtype << ", wide " << is_wide << ", workspace " << has_workspace << ", engine " << int(engine));
            const Tensor workspace = has_workspace ? product_workspace(c.out, c.in, c.rows) : Tensor();
            const CudaGuarded cuda_x({c.rows, c.in}, dtype, 0), cuda_weight({c.out, c.in}, result, 0), cuda_bias({c.out}, result, 0), alone({c.out}, result, 0);
            launch(LinearBackwardInput{.grad_out = on_cuda(grad), .weight = on_cuda(weight), .out = cuda_x.tensor, .workspace = workspace, .engine = engine});
            launch(LinearBackwardWeight{.grad_out = on_cuda(grad), .x = on_cuda(x), .out = cuda_weight.tensor, .grad_bias = cuda_bias.tensor, .scratch = {},
                                        .workspace = workspace, .engine = engine});
            launch(LinearBackwardBias{.grad_out = on_cuda(grad), .out = alone.tensor, .workspace = workspace});
            CHECK(same_bits(on_cpu(cuda_x.tensor), grad_x));
            CHECK(same_bits(on_cpu(cuda_weight.tensor), grad_weight));
            CHECK(same_bits(on_cpu(cuda_bias.tensor), grad_bias));
            CHECK(same_bits(on_cpu(alone.tensor), grad_bias));
            CHECK((cuda_x.is_intact() && cuda_weight.is_intact() && cuda_bias.is_intact() && alone.is_intact()));
          }
        }
}

TEST_CASE("cuda linear: a long batch's weight gradient is split, added in order onto what was there, and has the same bits every time") {
  const std::int64_t R = 2100, N = 24, K = 40;
  for (DType dtype : kFloatingDtypes) {
    const DType wide = accumulator_dtype(dtype);
    const Tensor x = whole_numbers({R, K}, dtype, 1), grad = whole_numbers({R, N}, dtype, 2), before = whole_numbers({N, K}, wide, 3);
    const Tensor expected = clone(before), expected_bias = full({N}, std::nan(""), wide);
    const std::int64_t scratch = LinearBackwardWeight::scratch_size(DeviceKind::cpu, R, N, K, wide);
    launch(LinearBackwardWeight{.grad_out = grad, .x = x, .out = expected, .grad_bias = expected_bias, .scratch = empty({scratch}, wide), .beta = 1,
                                .engine = GemmEngine::builtin});
    const auto run_on_cuda = [&](const Tensor& g, const Tensor& values, GemmEngine engine, std::int64_t bytes) {
      const Tensor out = on_cuda(before), bias = poisoned({N}, wide, cuda_device());
      launch(LinearBackwardWeight{.grad_out = on_cuda(g), .x = on_cuda(values), .out = out, .grad_bias = bias, .scratch = {},
                                  .beta = 1, .workspace = product_workspace(bytes), .engine = engine});
      return std::pair(on_cpu(out), on_cpu(bias));
    };
    for (GemmEngine engine : kEngines)
      for (std::int64_t bytes : {std::int64_t(0), N * K * 8 * 2 + 3, product_workspace_bytes(DeviceKind::cuda, N, K, R)}) {
        INFO(dtype << ", engine " << int(engine) << ", workspace " << bytes);
        const auto [out, bias] = run_on_cuda(grad, x, engine, bytes);
        CHECK(same_bits(out, expected));
        CHECK(same_bits(bias, expected_bias));
      }
    const Tensor random_x = random_tensor({R, K}, dtype, 4), random_grad = random_tensor({R, N}, dtype, 5);
    const auto first = run_on_cuda(random_grad, random_x, GemmEngine::builtin, 1 << 16), second = run_on_cuda(random_grad, random_x, GemmEngine::builtin, 1 << 16);
    CHECK(same_bits(first.first, second.first));
    CHECK(same_bits(first.second, second.second));
  }
}

TEST_CASE("cuda linear: NaN and infinities pass, and -inf leaves gelu as 0") {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (Activation activation : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
      const Tensor x = tensor_of({1}, {1, 1}, dtype), weight = tensor_of({std::nan(""), HUGE_VAL, -HUGE_VAL}, {3, 1}, dtype);
      const Tensor out = poisoned({1, 3}, dtype, cuda_device());
      launch(LinearForward{.x = on_cuda(x), .weight = on_cuda(weight), .bias = {}, .out = out, .activation = activation, .pre_activation = {}});
      const std::vector<double> got = on_cpu(out).to_vector<double>();
      CHECK(std::isnan(got[0]));
      CHECK(got[1] == HUGE_VAL);
      CHECK(got[2] == 0);
    }
}

TEST_CASE("cuda linear: outputs without bytes are left out") {
  const Device cuda = cuda_device();
  const Tensor x = on_cuda(whole_numbers({2, 3}, DType::f32, 1)), weight = on_cuda(whole_numbers({4, 3}, DType::f32, 2));
  const Tensor out = poisoned({2, 4}, DType::f32, cuda), grad_weight = poisoned({4, 3}, DType::f32, cuda);
  launch(LinearForward{.x = x, .weight = weight, .bias = {}, .out = without_bytes({2, 4}, DType::f32, cuda), .pre_activation = {}});
  launch(LinearForward{.x = x, .weight = weight, .bias = {}, .out = out, .pre_activation = without_bytes({2, 4}, DType::f32, cuda)});
  launch(LinearBackwardInput{.grad_out = out, .weight = weight, .out = without_bytes({2, 3}, DType::f32, cuda)});
  launch(LinearBackwardWeight{.grad_out = out, .x = x, .out = grad_weight, .grad_bias = without_bytes({4}, DType::f32, cuda), .scratch = {}});
  launch(LinearBackwardBias{.grad_out = out, .out = without_bytes({4}, DType::f32, cuda)});
  CHECK_FALSE(std::isnan(on_cpu(grad_weight).to_vector<double>()[0]));
}
