// NVIDIA's libraries as the emulator has them: which algorithms of cuDNN are chosen, and what happens where a library is missing.
#include <refrain/kernels/emulator/libraries/cudnn.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/tests/cuda/convolution_cases.h>

#include <cstdlib>
#include <filesystem>
#include <string>

using namespace refrain;
using namespace refrain::testing;
using emulator::cudnn_record;

namespace {

bool has_cudnn() { return cuda::cudnn_library().is_usable(); }

// The words of cudnn.h.
constexpr int kImplicitGemm = 0, kPrecomputedGemm = 1, kTensorOpMath = 1, kFmaMath = 3;

struct Problem {
  Conv c;
  DType dtype;
  Device device = cuda_device();
  ConvolutionGeometry g = c.geometry();
  Tensor x = on_cuda(whole_numbers(c.x, dtype, 1)), weight = on_cuda(whole_numbers(c.weight, dtype, 2)),
         bias = on_cuda(whole_numbers({g.O}, dtype, 3)), grad = on_cuda(whole_numbers(c.out(), dtype, 4));
  Tensor out = poisoned(c.out(), dtype, device), grad_x = poisoned(c.x, dtype, device),
         grad_weight = poisoned(c.weight, dtype, device);
  Tensor scratch(std::int64_t size, DType of) const { return poisoned({size}, of, device); }
  Tensor room(std::int64_t bytes) const { return bytes == 0 ? Tensor() : poisoned({bytes}, DType::u8, device); }

  void forward(const Tensor& b, std::int64_t bytes, GemmEngine engine = GemmEngine::cudnn) const {
    launch(Conv2dForward{.x = x,
                         .weight = weight,
                         .bias = b,
                         .out = out,
                         .scratch = scratch(g.scratch_size(), dtype),
                         .workspace = room(bytes),
                         .stride = c.stride,
                         .padding = c.padding,
                         .engine = engine});
  }
  void backward_input(std::int64_t bytes, GemmEngine engine = GemmEngine::cudnn) const {
    launch(Conv2dBackwardInput{.grad_out = grad,
                               .weight = weight,
                               .out = grad_x,
                               .scratch = scratch(g.input_scratch_size(dtype), accumulator_dtype(dtype)),
                               .workspace = room(bytes),
                               .stride = c.stride,
                               .padding = c.padding,
                               .engine = engine});
  }
  void backward_weight(std::int64_t bytes, GemmEngine engine = GemmEngine::cudnn) const {
    launch(Conv2dBackwardWeight{.grad_out = grad,
                                .x = x,
                                .out = grad_weight,
                                .scratch = scratch(g.weight_scratch_size(), dtype),
                                .sums = scratch(g.weight_sums_size(dtype), accumulator_dtype(dtype)),
                                .workspace = room(bytes),
                                .stride = c.stride,
                                .padding = c.padding,
                                .engine = engine});
  }
};

const Conv kConv{{2, 3, 8, 8}, {5, 3, 3, 3}, 1, 1};

}  // namespace

TEST_CASE(
    "emulator cuDNN: deterministic algorithms that multiply and add are taken, with FMA for f32 and tensor cores for 16 bits") {
  if (!has_cudnn()) return;
  for (const DType dtype : kFloatingDtypes) {
    INFO(dtype);
    const Problem p{kConv, dtype};
    const std::int64_t bytes = p.g.workspace_bytes(DeviceKind::cuda, dtype);
    const int math = is_16_bit(dtype) ? kTensorOpMath : kFmaMath;
    const auto check_run = [&](auto&& f, int algorithm, bool has_bias) {
      const int num_runs = cudnn_record().num_runs;
      f();
      CHECK(cudnn_record().num_runs == num_runs + 1);
      CHECK(cudnn_record().algorithm == algorithm);
      CHECK(cudnn_record().math == math);
      CHECK(cudnn_record().has_bias == has_bias);
      CHECK(cudnn_record().stream == p.device.state().range->cuda().stream);
      CHECK(std::int64_t(cudnn_record().workspace_bytes) <= bytes);
    };
    for (const GemmEngine engine : {GemmEngine::cudnn, GemmEngine::automatic}) {
      check_run([&] { p.forward({}, bytes, engine); }, kPrecomputedGemm, false);
      check_run([&] { p.backward_input(bytes, engine); }, 1, false);
      check_run([&] { p.backward_weight(bytes, engine); }, 1, false);
      if (dtype != DType::f64) check_run([&] { p.forward(p.bias, bytes, engine); }, kPrecomputedGemm, true);
    }
  }
}

TEST_CASE("emulator cuDNN: an algorithm is chosen once a shape, dtype and workspace") {
  if (!has_cudnn()) return;
  const Conv c{{1, 2, 9, 7}, {3, 2, 2, 2}, 2, 1};  // no other test's
  const Problem p{c, DType::f32}, other{c, DType::bf16};
  const std::int64_t bytes = p.g.workspace_bytes(DeviceKind::cuda, DType::f32);
  const int num_choices = cudnn_record().num_choices;
  for (int i = 0; i < 3; ++i) p.forward({}, bytes);
  CHECK(cudnn_record().num_choices == num_choices + 1);
  p.backward_input(bytes);
  p.backward_weight(bytes);
  p.forward(p.bias, bytes);
  p.forward({}, bytes + 4096);
  other.forward({}, bytes);
  CHECK(cudnn_record().num_choices == num_choices + 6);
  p.forward(p.bias, bytes);
  p.backward_weight(bytes);
  CHECK(cudnn_record().num_choices == num_choices + 6);
  // One number different at a time.
  const Conv others[] = {
      {{2, 2, 9, 7}, {3, 2, 2, 2}, 2, 1}, {{1, 3, 9, 7}, {3, 3, 2, 2}, 2, 1}, {{1, 2, 8, 7}, {3, 2, 2, 2}, 2, 1},
      {{1, 2, 9, 8}, {3, 2, 2, 2}, 2, 1}, {{1, 2, 9, 7}, {4, 2, 2, 2}, 2, 1}, {{1, 2, 9, 7}, {3, 2, 3, 2}, 2, 1},
      {{1, 2, 9, 7}, {3, 2, 2, 3}, 2, 1}, {{1, 2, 9, 7}, {3, 2, 2, 2}, 1, 1}, {{1, 2, 9, 7}, {3, 2, 2, 2}, 2, 0}};
  for (const Conv& neighbour : others) Problem{neighbour, DType::f32}.forward({}, bytes);
  CHECK(cudnn_record().num_choices == num_choices + 6 + int(std::size(others)));
}

TEST_CASE("emulator cuDNN: algorithms are chosen among those that the workspace is enough for") {
  if (!has_cudnn()) return;
  const Problem p{kConv, DType::bf16};
  p.forward({}, 0);
  CHECK(cudnn_record().algorithm == kImplicitGemm);
  CHECK(cudnn_record().workspace_bytes == 0);
  CHECK_THROWS_WITH(p.backward_input(0),
                    "conv2d_backward_input: cuDNN does not offer this convolution: it has no deterministic algorithm within a "
                    "workspace of 0 bytes");
  const int num_runs = cudnn_record().num_runs;
  p.backward_input(0, GemmEngine::automatic);
  p.backward_weight(300, GemmEngine::automatic);  // too few to start at a multiple of 256
  p.forward(p.bias, 0, GemmEngine::automatic);    // the one algorithm with a bias wants a workspace
  CHECK(cudnn_record().num_runs == num_runs);
}

TEST_CASE("emulator cuDNN: what it refuses only when it is run is left to our kernels") {
  if (!has_cudnn()) return;
  const Problem p{kConv, DType::f64};
  const int num_runs = cudnn_record().num_runs;
  for (int i = 0; i < 2; ++i) p.forward(p.bias, p.g.workspace_bytes(DeviceKind::cuda, DType::f64), GemmEngine::automatic);
  CHECK(cudnn_record().num_runs == num_runs);
  CHECK(on_cpu(p.out).to_vector<double>()[0] == std::round(on_cpu(p.out).to_vector<double>()[0]));
  CHECK_THROWS_WITH(p.forward(p.bias, p.g.workspace_bytes(DeviceKind::cuda, DType::f64)),
                    Catch::Contains("it refused what it had offered: CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"));
}

TEST_CASE("emulator libraries: a function that is not there makes a library unusable, with its name") {
  cuda::Library library(cuda::cublaslt_library().file());
  CHECK(library.is_usable());
  CHECK(library.find<void (*)()>("cublasLtCreate") != nullptr);
  CHECK(library.find<void (*)()>("cublasLtNoSuchThing") == nullptr);
  CHECK(library.problem() == "it has no function cublasLtNoSuchThing");
  const cuda::Library missing("libmissing.so.1");
  CHECK(missing.problem() == "libmissing.so.1: the emulator has no such library");
  CHECK_THROWS_WITH(missing.require("norm"),
                    "norm: libmissing.so.1 cannot be used: libmissing.so.1: the emulator has no such library");
}

// Run by the test below, in a process that has neither library.
TEST_CASE("emulator libraries: where they are missing our kernels do the work, and names are refused with the reason",
          "[.missing_libraries]") {
  if (emulator::options().hidden_libraries.empty()) return;  // a filter took it for itself
  const std::vector<cuda::LibraryState> states = cuda::library_states();
  REQUIRE(states.size() == 2);
  for (const cuda::LibraryState& state : states) CHECK_FALSE(state.problem.empty());
  CHECK(states[0].problem == states[0].file + ": hidden by the emulator's options");
  const int num_runs = cudnn_record().num_runs;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = whole_numbers(kConv.x, dtype, 1), weight = whole_numbers(kConv.weight, dtype, 2),
                 bias = whole_numbers({5}, dtype, 3), grad = whole_numbers(kConv.out(), dtype, 4);
    check_same(run_all(kConv, on_cuda(x), on_cuda(weight), on_cuda(bias), on_cuda(grad), dtype, GemmEngine::automatic, 0),
               run_all(kConv, x, weight, bias, grad, dtype, GemmEngine::builtin, 0));
  }
  CHECK(cudnn_record().num_runs == num_runs);
  const Problem p{kConv, DType::f32};
  CHECK_THROWS_AS(p.backward_input(0), InvalidArgument);
  CHECK_THROWS_WITH(p.backward_input(0),
                    Catch::StartsWith("conv2d_backward_input: libcudnn.so") && Catch::Contains(" cannot be used: "));
  const Tensor a = on_cuda(whole_numbers({4, 4}, DType::f32, 1)), c = poisoned({4, 4}, DType::f32, cuda_device());
  CHECK_THROWS_AS(launch(Matmul{.a = a, .b = a, .out = c, .engine = GemmEngine::cublaslt}), InvalidArgument);
  CHECK_THROWS_WITH(launch(Matmul{.a = a, .b = a, .out = c, .engine = GemmEngine::cublaslt}),
                    "matmul: " + states[0].file + " cannot be used: " + states[0].problem);
  launch(Matmul{.a = a, .b = a, .out = c});
  const Tensor here = on_cpu(a), expected = empty({4, 4}, DType::f32);
  launch(Matmul{.a = here, .b = here, .out = expected});
  CHECK(same_bits(on_cpu(c), expected));
}

TEST_CASE("emulator libraries: a program without cuBLASLt and cuDNN runs") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "REFRAIN_EMULATOR_HIDE=libcublasLt,libcudnn REFRAIN_EMULATOR_REPORT= '" + program + "' '[.missing_libraries]' 2>&1";
  CHECK(std::system(command.c_str()) == 0);
}
