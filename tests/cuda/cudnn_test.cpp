// Convolutions by cuDNN against the CPU's kernels, where it is there. What the emulator alone can tell is in
// emulator_libraries_test.cpp.
#include <refrain/autograd/ops/convolution.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/cuda/convolution_cases.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

bool has_cudnn() { return cuda::cudnn_library().is_usable(); }

// Where cuDNN is asked for by name it may say that it does not offer something, and nothing else.
template <class F>
bool is_offered(F&& f) {
  try {
    f();
    return true;
  } catch (const InvalidArgument& error) {
    CHECK_THAT(error.what(), Catch::Contains("cuDNN does not offer this convolution: "));
    return false;
  }
}

struct Values {
  Tensor x, weight, bias, grad;
  Values(const Conv& c, DType dtype)
      : x(whole_numbers(c.x, dtype, 1)),
        weight(whole_numbers(c.weight, dtype, 2)),
        bias(whole_numbers({c.weight[0]}, dtype, 4)),
        grad(whole_numbers(c.out(), dtype, 3)) {}
};

}  // namespace

TEST_CASE("cuda conv2d: where cuDNN is chosen by itself, whole numbers have the CPU's bits, in every dtype and at any start") {
  for (const Conv& c : kConvs)
    for (DType dtype : kFloatingDtypes)
      for (int kind = 0; kind < 4; ++kind) {  // no bias, one of the operands' dtype, everything off 16 bytes, f32 for weights
        if (kind == 3 && !is_16_bit(dtype)) continue;
        const DType weights = kind == 3 ? DType::f32 : dtype;
        const std::int64_t shift = kind == 2 ? 1 : 0;
        INFO(c.x << " with " << c.weight << " " << dtype << ", kind " << kind);
        const Values v(c, dtype);
        const Tensor bias = kind == 0 ? Tensor() : whole_numbers({c.weight[0]}, weights, 4);
        const CudaGuarded x(v.x, shift);
        check_same(run_all(c, x.tensor, on_cuda(v.weight), on_cuda(bias), on_cuda(v.grad), weights, GemmEngine::automatic, shift),
                   run_all(c, v.x, v.weight, bias, v.grad, weights, GemmEngine::builtin, 0));
      }
}

TEST_CASE("cuda conv2d: cuDNN by name has the CPU's bits on whole numbers, or says what it does not offer") {
  if (!has_cudnn()) return;
  const Device cuda = cuda_device();
  int num_offered = 0;
  for (const Conv& c : kConvs)
    for (DType dtype : kFloatingDtypes) {
      INFO(c.x << " with " << c.weight << " " << dtype);
      const ConvolutionGeometry g = c.geometry();
      const Values v(c, dtype);
      const std::vector<Tensor> expected = run_all(c, v.x, v.weight, v.bias, v.grad, dtype, GemmEngine::builtin, 0);
      const Tensor x = on_cuda(v.x), weight = on_cuda(v.weight), grad = on_cuda(v.grad), bias = on_cuda(v.bias);
      const Tensor workspace = poisoned({g.workspace_bytes(DeviceKind::cuda, dtype)}, DType::u8, cuda);
      const CudaGuarded out(c.out(), dtype, 0), grad_x(c.x, dtype, 0), grad_weight(c.weight, dtype, 0);
      const auto check_output = [&](bool offered, const CudaGuarded& got, const Tensor& wanted) {
        CHECK(got.is_intact());
        if (!offered) return;
        ++num_offered;
        CHECK(same_bits(on_cpu(got.tensor), wanted));
      };
      check_output(is_offered([&] {
                     launch(Conv2dForward{.x = x,
                                          .weight = weight,
                                          .bias = bias,
                                          .out = out.tensor,
                                          .scratch = poisoned({g.scratch_size()}, dtype, cuda),
                                          .workspace = workspace,
                                          .stride = c.stride,
                                          .padding = c.padding,
                                          .engine = GemmEngine::cudnn});
                   }),
                   out, expected[0]);
      check_output(
          is_offered([&] {
            launch(Conv2dBackwardInput{.grad_out = grad,
                                       .weight = weight,
                                       .out = grad_x.tensor,
                                       .scratch = poisoned({g.input_scratch_size(dtype)}, accumulator_dtype(dtype), cuda),
                                       .workspace = workspace,
                                       .stride = c.stride,
                                       .padding = c.padding,
                                       .engine = GemmEngine::cudnn});
          }),
          grad_x, expected[1]);
      check_output(is_offered([&] {
                     launch(Conv2dBackwardWeight{.grad_out = grad,
                                                 .x = x,
                                                 .out = grad_weight.tensor,
                                                 .scratch = poisoned({g.weight_scratch_size()}, dtype, cuda),
                                                 .sums = poisoned({g.weight_sums_size(dtype)}, accumulator_dtype(dtype), cuda),
                                                 .workspace = workspace,
                                                 .stride = c.stride,
                                                 .padding = c.padding,
                                                 .engine = GemmEngine::cudnn});
                   }),
                   grad_weight, expected[2]);
    }
  CHECK(num_offered >= 3 * 4);
}

TEST_CASE("cuda conv2d: f32 is f32, not TF32, and a bias is added before the one rounding") {
  // One product a result: what comes out has all bits of what went in.
  const Conv one{{1, 1, 4, 4}, {1, 1, 1, 1}, 1, 0};
  const Tensor x = random_tensor(one.x, DType::f32, 1), weight = full({1, 1, 1, 1}, 1, DType::f32);
  const std::vector<Tensor> got =
      run_all(one, on_cuda(x), on_cuda(weight), Tensor(), on_cuda(x), DType::f32, GemmEngine::automatic, 0);
  CHECK(same_bits(on_cpu(got[0]), x));
  CHECK(same_bits(on_cpu(got[1]), x));
  double squares = 0;
  for (const double value : x.to_vector<double>()) squares += value * value;
  CHECK(std::abs(on_cpu(got[2]).to_vector<double>()[0] - squares) <= 17 * 0x1p-24 * squares);
  // 257 is 256 in bf16, and 256 + 1 is 256 again; 257 + 1 is 258.
  const Tensor pixels = tensor_of({256, 1}, {1, 2, 1, 1}, DType::bf16), ones = full({1, 2, 1, 1}, 1, DType::bf16);
  const Tensor grad = full({1, 1, 1, 1}, 1, DType::bf16);
  for (const DType bias : {DType::bf16, DType::f32}) {
    const Conv sum{pixels.shape(), ones.shape(), 1, 0};
    const std::vector<Tensor> out =
        run_all(sum, on_cuda(pixels), on_cuda(ones), on_cuda(full({1}, 1, bias)), on_cuda(grad), bias, GemmEngine::automatic, 0);
    CHECK(on_cpu(out[0]).to_vector<double>()[0] == 258);
  }
}

TEST_CASE("cuda conv2d: what cuDNN is not asked for is said where it is asked for by name") {
  if (!has_cudnn()) return;
  const Conv c{{1, 2, 4, 4}, {2, 2, 3, 3}, 1, 1};
  const auto run = [&](const Conv& conv, DType dtype, DType weights, std::int64_t shift) {
    const Values v(conv, dtype);
    const CudaGuarded x(v.x, shift);
    run_all(conv, x.tensor, on_cuda(v.weight), on_cuda(whole_numbers({conv.weight[0]}, weights, 4)), on_cuda(v.grad), weights,
            GemmEngine::cudnn, 0);
  };
  CHECK_THROWS_WITH(run(c, DType::f32, DType::f32, 1),
                    "conv2d: cuDNN does not offer this convolution: a tensor does not start at a multiple of 16 bytes");
  CHECK_THROWS_WITH(run(c, DType::bf16, DType::f32, 0),
                    "conv2d: cuDNN does not offer this convolution: the bias has another dtype");
  CHECK_THROWS_WITH(run({{0, 2, 4, 4}, {2, 2, 3, 3}, 1, 1}, DType::f32, DType::f32, 0),
                    "conv2d: cuDNN does not offer this convolution: a tensor is empty");
  const Values v(c, DType::bf16);
  const ConvolutionGeometry g = c.geometry();
  const Device cuda = cuda_device();
  CHECK_THROWS_WITH(launch(Conv2dBackwardWeight{.grad_out = on_cuda(v.grad),
                                                .x = on_cuda(v.x),
                                                .out = poisoned(c.weight, DType::f32, cuda),
                                                .scratch = poisoned({g.weight_scratch_size()}, DType::bf16, cuda),
                                                .sums = poisoned({g.weight_sums_size(DType::f32)}, DType::f32, cuda),
                                                .stride = c.stride,
                                                .padding = c.padding,
                                                .engine = GemmEngine::cudnn}),
                    "conv2d_backward_weight: cuDNN does not offer this convolution: the weight's gradient has another dtype");
}

TEST_CASE("cuda conv2d: engines of the other device are refused") {
  const Conv c{{1, 1, 2, 2}, {1, 1, 1, 1}, 1, 0};
  const Values v(c, DType::f32);
  CHECK_THROWS_WITH(run_all(c, v.x, v.weight, Tensor(), v.grad, DType::f32, GemmEngine::cudnn, 0),
                    "gemm: an engine of CUDA was asked for on the CPU");
  CHECK_THROWS_WITH(run_all(c, on_cuda(v.x), on_cuda(v.weight), Tensor(), on_cuda(v.grad), DType::f32, GemmEngine::eigen, 0),
                    "conv2d: a GEMM engine of the CPU was asked for on CUDA");
}

TEST_CASE("cuda conv2d: the plan for CUDA is the run to the byte, whoever computes") {
  struct Case {
    Conv conv;
    DType dtype, weights;
  };
  const Case cases[] = {{kConvs[0], DType::f32, DType::f32},
                        {kConvs[2], DType::bf16, DType::bf16},
                        {kConvs[3], DType::f16, DType::f32},
                        {kConvs[4], DType::f32, DType::f32},  // what the fake does not offer
                        {{{1, 3, 40, 40}, {16, 3, 5, 5}, 1, 2}, DType::bf16, DType::bf16}};
  for (const Case& one : cases) {
    const auto peak_on = [&](const Device& device) {
      const auto leaf = [&](const Shape& shape, DType dtype) {
        const Tensor t = zeros(shape, dtype, device);
        set_requires_grad(t);
        return t;
      };
      const Tensor x = leaf(one.conv.x, one.dtype), weight = leaf(one.conv.weight, one.weights),
                   bias = leaf({one.conv.weight[0]}, one.weights);
      const Tensor y = conv2d(x, weight, bias, one.conv.stride, one.conv.padding);
      backward(y, {.grad_out = zeros(y.shape(), y.dtype(), device)});
      return std::pair(device.peak_bytes(), device.reserved_bytes());
    };
    INFO(one.conv.x << " with " << one.conv.weight << " " << one.dtype << ", weights " << one.weights);
    const auto plan = peak_on(Device::plan(DeviceKind::cuda));
    CHECK(peak_on(Device::new_cuda()) == plan);
    CHECK(plan.first > one.conv.geometry().workspace_bytes(DeviceKind::cuda, one.dtype));
    CHECK(peak_on(Device::new_cpu()) == peak_on(Device::plan(DeviceKind::cpu)));
  }
  CHECK(kConvs[0].geometry().workspace_bytes(DeviceKind::cpu, DType::f32) == 0);
}
