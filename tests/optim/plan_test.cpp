// Norms, losses and updates on a plan device: the same program, the same bytes, no values.
#include <refrain/autograd/ops/embedding.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/tape.h>
#include <refrain/kernels/kernel.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/catch.h>

using namespace refrain;

namespace {

struct Measured {
  std::int64_t peak_bytes, live_bytes, optimizer_bytes;
  double flops;
  friend bool operator==(const Measured&, const Measured&) = default;
};

Measured train_two_steps(const Device& device) {
  const double flops_before = cost_meter().total.flops;
  const Tensor table = full({50, 33}, 0.1, DType::f32, device), weight = full({33}, 1, DType::f32, device),
               bias = zeros({33}, DType::f32, device);
  const Tensor indices = full({4, 7}, 3, DType::i64, device), targets = full({4, 7}, 1, DType::i64, device);
  for (const Tensor& t : {table, weight, bias}) set_requires_grad(t);
  const RunningStatistics running{zeros({7}, DType::f32, device), full({7}, 1, DType::f32, device)};
  AdamW optimizer({{.parameters = {table, weight, bias}, .weight_decay = 0.1}});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    Tensor x = layer_norm(embedding(indices, table), weight, bias, 1e-5);
    x = batch_norm2d(x, {}, {}, running, {});
    const Tensor loss = cross_entropy(softmax(x, 1), targets);
    backward(loss);
    const double norm = global_grad_norm(optimizer.parameters());
    optimizer.step(1e-3, clip_factor(norm, 1));
  }
  return {device.peak_bytes(), device.live_bytes(), device.live_bytes(MemoryKind::optimizer_state),
          cost_meter().total.flops - flops_before};
}

}  // namespace

TEST_CASE("plan device: two training steps take the bytes and the flops of the real ones") {
  const Measured real = train_two_steps(Device::new_cpu()), planned = train_two_steps(Device::plan());
  CHECK(planned == real);
  CHECK(real.optimizer_bytes == 2 * 4 * (50 * 33 + 33 + 33));
  CHECK(real.peak_bytes > real.live_bytes);
}
