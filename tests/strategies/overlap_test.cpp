// Reductions run while backward still computes: with transfers and compute that take wall time and no processor, a step takes
// little more than the longer of the two.
#include <refrain/autograd/op.h>
#include <refrain/autograd/saved_tensor.h>
#include <refrain/dist/data_parallel.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>

#include <algorithm>
#include <chrono>
#include <thread>

using namespace refrain;

namespace {

using Seconds = std::chrono::duration<double>;
constexpr Seconds kBackward{0.02};
constexpr int kNumLayers = 16;

// x · w, whose backward takes its time.
struct SlowScale {
  static constexpr std::string_view name = "slow_scale";
  struct Saved {
    SavedTensor x, w;
  };
  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Tensor& w) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(Binary{.op = BinaryOp::mul, .a = x, .b = w, .out = out});
    return {out, {x, w}};
  }
  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs) {
    std::this_thread::sleep_for(kBackward);
    const auto product = [&](const Tensor& t) {
      const Tensor out = empty_like(grad_out);
      launch(Binary{.op = BinaryOp::mul, .a = grad_out, .b = t, .out = out});
      return out;
    };
    return {product(saved.w.get()), product(saved.x.get())};
  }
};

double step_seconds(Seconds transfer) {
  double best = 1e9;
  testing::run_ranks(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        std::vector<Tensor> weights;
        for (int i = 0; i < kNumLayers; ++i) {
          weights.push_back(full({1}, 1, DType::f32, group->device()));
          set_requires_grad(weights.back());
        }
        DataParallel ddp(*group, std::vector<NamedTensor>{}, weights, {.bucket_bytes = 4});
        for (int step = 0; step < 4; ++step) {
          const auto begin = std::chrono::steady_clock::now();
          Tensor x = full({1}, 1, DType::f32, group->device());
          for (const Tensor& w : weights) x = apply<SlowScale>(x, w);
          backward(x, ddp.options());
          ddp.finish();
          const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
          for (const Tensor& w : weights) clear_grad(w);
          if (step >= 1 && group->rank() == 0) best = std::min(best, seconds);
        }
      },
      // Numbers that are agreed on, such as the order of buckets, are no gradients.
      {.transfer_time = [transfer](std::int64_t bytes) { return bytes <= 16 ? transfer : Seconds{0}; }});
  return best;
}

}  // namespace

TEST_CASE("ddp: with transfers of half, equal and twice the compute a step takes at most 1.15 times the longer of the two") {
  for (const double share : {0.5, 1.0, 2.0}) {
    INFO("transfers take " << share << " of the compute");
    const double compute = kNumLayers * kBackward.count(), transfers = share * compute;
    CHECK(step_seconds(kBackward * share) < 1.15 * std::max(compute, transfers));
  }
}
