// Gradients that travel in 16 bits: what becomes of their values, how many bytes are sent, and that ranks stay alike.
#include <refrain/autograd/ops/all.h>
#include <refrain/core/half.h>
#include <refrain/dist/data_parallel.h>
#include <refrain/tests/strategies/training.h>

#include <cmath>
#include <limits>

using namespace refrain;
using namespace refrain::testing;

namespace {

// Rank r's factor of element i: neither their values nor their sums are 16-bit numbers.
float factor(int rank, std::int64_t i) { return (1 + 0.37f * float(i % 101)) * (rank == 0 ? 1.0f : -0.7071f); }

Tensor factors(int rank, std::int64_t count, const Device& device) {
  const Tensor t = empty({count}, DType::f32, device);
  for (std::int64_t i = 0; i < count; ++i) t.data<float>()[i] = factor(rank, i);
  return t;
}

// Bytes that a step sends once buckets are agreed on.
double bytes_a_step(const Config& config) {
  const std::int64_t many = train_ranks(2, config, 100, 9)[0].bytes_sent, few = train_ranks(2, config, 100, 4)[0].bytes_sent;
  return double(many - few) / 5;
}

Config ddp(const std::string& compression) {
  Config config = small_config(false);
  config.strategy = "ddp";
  config.gradient_compression = compression;
  return config;
}

}  // namespace

TEST_CASE("compression: one rounding of each rank's gradient and one of their sum, and half the bytes of an update") {
  constexpr std::int64_t kCount = 4096;
  std::int64_t whole_bytes = 0;
  for (const DType narrow : {DType::f32, DType::bf16, DType::f16}) {
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const Device& device = group->device();
      const Tensor w = full({kCount}, 1, DType::f32, device), unused = full({3}, 1, DType::f32, device);
      set_requires_grad(w);
      set_requires_grad(unused);
      DataParallel ddp(*group, std::vector<NamedTensor>{}, {w, unused}, {.op = ReduceOp::sum, .compression = narrow});
      for (int update = 0; update < 3; ++update) {
        const Tensor c = factors(group->rank(), kCount, device);
        const BackwardOptions options = ddp.options();
        const std::int64_t before = group->bytes_sent();
        backward(sum(mul(w, c)), options);
        ddp.finish();
        const std::int64_t sent = group->bytes_sent() - before;
        if (group->rank() == 0 && narrow == DType::f32) whole_bytes = sent;
        // In the first order the small one is in front, and what lies between them has another size in 16 bits.
        if (narrow != DType::f32 && update > 0) check(2 * sent == whole_bytes, sent, " bytes, ", whole_bytes, " without compression");
        check(!grad_of(unused).defined(), "an unused parameter has a gradient");
        check(device.live_bytes(MemoryKind::communication) == 0, "a bucket is left");
        const Tensor grad = grad_of(w);
        check(grad.dtype() == DType::f32, "gradient of ", grad.dtype());
        for (std::int64_t i = 0; i < kCount; ++i) {
          const float a = factor(0, i), b = factor(1, i);
          const float expected = narrow == DType::f32    ? a + b
                                 : narrow == DType::bf16 ? float(bf16(float(bf16(a)) + float(bf16(b))))
                                                         : float(f16(float(f16(a)) + float(f16(b))));
          check(grad.data<float>()[i] == expected, "element ", i, ": ", grad.data<float>()[i], ", expected ", expected);
        }
        clear_grad(w);
      }
    });
  }
  CHECK(whole_bytes > kCount * 4);
}

TEST_CASE("compression: what f16 cannot hold is an infinity, bf16 holds it; f64 and 16-bit gradients travel as they are") {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const DType narrow : {DType::f16, DType::bf16}) {
      const Device& device = group->device();
      const auto leaf = [&](DType dtype) {
        const Tensor t = full({5}, 1, dtype, device);
        set_requires_grad(t);
        return t;
      };
      const Tensor single = leaf(DType::f32), wide = leaf(DType::f64), half = leaf(DType::bf16);
      DataParallel ddp(*group, std::vector<NamedTensor>{}, {single, wide, half}, {.op = ReduceOp::sum, .compression = narrow});
      const double large = group->rank() == 0 ? 65536 : 0, fine = 1 + 0x1p-40;
      const BackwardOptions options = ddp.options();
      set_grad(single, full({5}, large, DType::f32, device));
      options.on_final(single, true);
      set_grad(wide, full({5}, fine, DType::f64, device));
      options.on_final(wide, true);
      set_grad(half, full({5}, 3, DType::bf16, device));
      options.on_final(half, true);
      ddp.finish();
      const float expected = narrow == DType::f16 ? std::numeric_limits<float>::infinity() : 65536.0f;
      check(grad_of(single).to_vector<float>()[4] == expected, "large: ", grad_of(single).to_vector<float>()[4]);
      check(grad_of(wide).to_vector<double>()[4] == 2 * fine, "f64 was rounded");
      check(grad_of(half).dtype() == DType::bf16 && grad_of(half).to_vector<float>()[0] == 6, "bf16");
    }
  });
}

TEST_CASE("compression: a training sends half the bytes, its ranks have the same weights, near those without, after and fused") {
  const Outcome plain = train_ranks(2, ddp("none"), 40, 10)[0];
  for (const char* compression : {"bf16", "f16"}) {
    for (const char* update : {"after", "fused"}) {
      Config config = ddp(compression);
      config.update = update;
      INFO(compression << ' ' << update);
      const std::vector<Outcome> ranks = train_ranks(2, config, 40, 10);
      CHECK(ranks[0].weights == ranks[1].weights);
      CHECK(ranks[0].losses == ranks[1].losses);
      CHECK(ranks[0].weights != plain.weights);
      CHECK(largest_difference(ranks[0].weights, plain.weights) < 5e-3);
      // What else is sent: the step's numbers, and a mark for each parameter.
      CHECK(bytes_a_step(config) / bytes_a_step(ddp("none")) == Approx(0.5).margin(0.02));
    }
  }
}

TEST_CASE("compression: f16 that overflows is seen by the loss scale on all ranks") {
  Config config = ddp("f16");
  config.precision = "bf16-mixed";  // whose gradients are far from overflowing
  config.loss_scale = "dynamic";
  config.loss_scale_init = 0x1p24;
  const std::vector<Outcome> ranks = train_ranks(2, config, 40, 12);
  CHECK(!ranks[0].is_applied[0]);
  CHECK(ranks[0].is_applied.back());
  CHECK(ranks[0].is_applied == ranks[1].is_applied);
  CHECK(ranks[0].loss_scale == ranks[1].loss_scale);
  CHECK(ranks[0].weights == ranks[1].weights);
  config.gradient_compression = "bf16";
  CHECK(train_ranks(2, config, 40, 1)[0].is_applied[0]);
}

TEST_CASE("compression: refused where there is nothing to compress") {
  Config config = ddp("bf16");
  CHECK_NOTHROW(check_config(config));
  config.precision = "bf16-true";
  CHECK_THROWS_WITH(check_config(config), "gradient_compression: with precision = \"bf16-true\" gradients have 16 bits already");
  config = ddp("f16");
  config.strategy = "local_sgd";
  CHECK_THROWS_WITH(check_config(config), Catch::Contains("gradient_compression: needs strategy = \"ddp\""));
  const auto group = single_group(Device::cpu());
  const Tensor w = full({2}, 1, DType::bf16);
  set_requires_grad(w);
  CHECK_THROWS_WITH(DataParallel(*group, std::vector<NamedTensor>{}, {w}, {.compression = DType::f16}),
                    "data parallel: compression to f16 is for f32 gradients, and there is none");
  CHECK_THROWS_WITH(DataParallel(*group, std::vector<NamedTensor>{}, {w}, {.compression = DType::i64}),
                    "data parallel: gradients are compressed to f16 or bf16, got i64");
}
