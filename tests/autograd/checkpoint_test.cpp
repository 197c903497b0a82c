// Checkpoint regions: the same bits as without them, only what backward reads is computed, and no effects twice.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/in_place.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <atomic>
#include <thread>

using namespace refrain;
using refrain::testing::check_same_bits;
using refrain::testing::test_values;

namespace {

Tensor leaf(const Shape& shape, double value) {
  Tensor t = full(shape, value, DType::f64);
  set_requires_grad(t);
  return t;
}

Tensor leaf_values(const Shape& shape, int salt) {
  Tensor t = test_values(shape, DType::f64, salt);
  set_requires_grad(t);
  return t;
}

// Counts how often its arithmetic runs; y = x + drift, where drift is 0 unless a test plants a non-determinism.
std::atomic<int> counted_runs{0};
std::atomic<double> drift{0};

struct CountedKernel {
  static constexpr std::string_view name = "counted";
  In x;
  Out out;
};
void validate(const CountedKernel&) {}
Cost cost(const CountedKernel& k) { return {0, 2 * k.x.bytes()}; }
void run(Cpu, const CountedKernel& k) {
  ++counted_runs;
  for (std::int64_t i = 0; i < k.x.numel(); ++i) k.out.data<double>()[i] = k.x.data<double>()[i] + drift;
}

struct Counted {
  static constexpr std::string_view name = "counted";
  struct Saved {};
  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x) {
    Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(CountedKernel{.x = x, .out = out});
    return {out, Saved{}};
  }
  static Grads<1> backward(const Saved&, const Tensor& grad_out, Needs) { return {grad_out}; }
};
Tensor counted(const Tensor& x) { return apply<Counted>(x); }

}  // namespace

TEST_CASE("checkpoint: dropout's mask is the same in replay, and later numbers are unmoved") {
  struct Run {
    Tensor y, grad;
    std::vector<float> draws;
  };
  const auto run = [](bool with_checkpoint) {
    seed_random(0);
    const Tensor w = leaf({4096}, 1), x = full({4096}, 1, DType::f64);
    const auto f = [&](const Tensor& v) { return dropout(v * w, 0.5); };
    const Tensor y = with_checkpoint ? checkpoint(f, x) : f(x);
    Run result{detach(y), {}, {}};
    backward(sum(y));
    result.grad = grad_of(w);
    for (int i = 0; i < 3; ++i) result.draws.push_back(default_generator().uniform());
    return result;
  };
  const Run plain = run(false), replayed = run(true);
  check_same_bits(plain.y, replayed.y);
  check_same_bits(plain.grad, replayed.grad);
  check_same_bits(replayed.y, replayed.grad);
  CHECK(plain.draws == replayed.draws);
  double kept = 0;
  for (double value : plain.y.to_vector<double>()) {
    CHECK((value == 0 || value == 2));
    kept += value / 2;
  }
  CHECK((kept > 1900 && kept < 2200));
}

TEST_CASE("checkpoint: a generator of one's own is put back for the replay and left where it was") {
  const Generator generator(3);
  const Tensor w = leaf({512}, 1);
  const Tensor y = checkpoint([&](const Tensor& v) { return dropout(v * w, 0.5, generator); }, full({512}, 1, DType::f64));
  const std::uint64_t position = generator.position();
  generator.next();
  backward(sum(y));
  CHECK(generator.position() == position + 1);
  check_same_bits(grad_of(w), detach(y));
}

TEST_CASE("checkpoint: parameters get gradients though no input needs one") {
  const Tensor x = full({}, 5, DType::f64), w1 = leaf({}, 2), w2 = leaf({}, 3);
  const Tensor h = checkpoint([&](const Tensor& v) { return v * w1; }, x);
  backward(h * w2);
  CHECK(grad_of(w1).item() == 15);
  CHECK(grad_of(w2).item() == 10);
}

TEST_CASE("checkpoint: an in-place op on a value that wants a gradient is refused, alike inside and outside") {
  const Tensor p = leaf({}, 1), x = leaf({5}, 0);
  const auto f = [&](const Tensor& v) {
    const Tensor shifted = v + p;
    relu_(slice(shifted, 0, 0, 5));
    return shifted;
  };
  CHECK_THROWS_AS(f(x), InvalidArgument);
  CHECK_THROWS_AS(checkpoint(f, x), InvalidArgument);
  const Tensor y = checkpoint([&](const Tensor& v) { return relu(slice(v + p, 0, 0, 5)); }, x);  // the way the message names
  backward(sum(y));
  CHECK(grad_of(p).item() == 5);
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(5, 1));
}

TEST_CASE("checkpoint: nested regions give the derivative") {
  const Tensor x = leaf({}, 0.5);
  const auto inner = [](const Tensor& v) { return sin(exp(v)); };
  const Tensor y = checkpoint([&](const Tensor& v) { return checkpoint(inner, v); }, x);
  backward(y);
  CHECK(grad_of(x).item() == Approx(-0.12834652741859814).epsilon(1e-14));
}

TEST_CASE("checkpoint: a block that saves nothing is never computed again") {
  counted_runs = 0;
  const Tensor x = leaf({}, 7);
  backward(checkpoint([](const Tensor& v) { return counted(v) + counted(v); }, x));
  CHECK(grad_of(x).item() == 2);
  CHECK(counted_runs == 2);
}

TEST_CASE("checkpoint: an op after the last value backward reads runs once, one before it twice") {
  const Tensor x = leaf({8}, 0.5);
  counted_runs = 0;
  backward(sum(checkpoint([](const Tensor& v) { return counted(sin(v)); }, x)));
  CHECK(counted_runs == 1);
  const Tensor after = grad_of(x);
  clear_grad(x);
  counted_runs = 0;
  backward(sum(checkpoint([](const Tensor& v) { return sin(counted(v)); }, x)));
  CHECK(counted_runs == 2);
  check_same_bits(after, grad_of(x));
}

TEST_CASE("checkpoint: a value read in the first run is there in the replay") {
  counted_runs = 0;
  const Tensor x = leaf({}, 2);
  const Tensor y = checkpoint(
      [](const Tensor& v) {
        const Tensor a = counted(v);
        return a.item() > 1 ? a * 3.0 : a * 5.0;
      },
      x);
  backward(y);
  CHECK(grad_of(x).item() == 3);
  CHECK(counted_runs == 2);
}

TEST_CASE("checkpoint: any arguments and results") {
  const Tensor a = leaf_values({3}, 1), b = leaf_values({3}, 2);
  const auto f = [](std::vector<Tensor> list, double factor, std::pair<Tensor, int> named) {
    const Tensor product = list[0] * list[1] * factor;
    return std::make_tuple(product, std::string("text"), std::vector<Tensor>{product + named.first, named.first});
  };
  auto [product, text, list] = checkpoint(f, std::vector<Tensor>{a, b}, 2.0, std::make_pair(b, 4));
  CHECK(text == "text");
  CHECK(is_same(list[1], b));
  backward(sum(product * product) + sum(list[0] * 3.0) + sum(list[1]));
  const Tensor grad_a = grad_of(a), grad_b = grad_of(b);
  clear_grad(a);
  clear_grad(b);
  auto [product2, text2, list2] = f({a, b}, 2.0, {b, 4});
  backward(sum(product2 * product2) + sum(list2[0] * 3.0) + sum(list2[1]));
  check_same_bits(grad_a, grad_of(a));
  check_same_bits(grad_b, grad_of(b));
}

TEST_CASE("checkpoint: captured values, parameters and constants are found, and their gradients are exact") {
  const Tensor w = leaf_values({6, 6}, 1), x = leaf_values({4, 6}, 2), mask = test_values({4, 6}, DType::f64, 3);
  const auto run = [&](bool with_checkpoint) {
    clear_grad(w);
    clear_grad(x);
    const Tensor outer = exp(x * 0.5);
    Tensor y;
    if (with_checkpoint) {
      // A temporary lambda that owns what it captures; the region must own it.
      y = checkpoint([outer, &w, mask](const Tensor& v) { return linear(v * outer, w, Tensor()) * mask + outer; }, x);
    } else {
      y = linear(x * outer, w, Tensor()) * mask + outer;
    }
    backward(sum(y * outer));
    return std::pair(grad_of(w), grad_of(x));
  };
  const auto [plain_w, plain_x] = run(false);
  const auto [w_grad, x_grad] = run(true);
  check_same_bits(plain_w, w_grad);
  check_same_bits(plain_x, x_grad);
}

TEST_CASE("checkpoint: a captured value or parameter changed before the replay is an error") {
  const Tensor x = leaf_values({4}, 1), w = leaf_values({4}, 2);
  const Tensor captured = exp(x);
  const Tensor y = checkpoint([&](const Tensor& v) { return sin(v * captured * w); }, x);
  {
    NoGradScope no_grad;
    mul_(w, 2.0);
  }
  CHECK_THROWS_WITH(backward(sum(y)), Catch::Contains("changed in place"));
}

TEST_CASE("checkpoint: discarded and repeated results, and results that are inputs") {
  const Tensor x = leaf_values({5}, 1), w = leaf_values({5}, 2);
  const auto f = [&](const Tensor& v) {
    const Tensor unused = exp(v * w);
    const Tensor y = sin(v * w);
    return std::vector<Tensor>{y, unused, y, v};
  };
  const auto run = [&](bool with_checkpoint) {
    clear_grad(x);
    clear_grad(w);
    const std::vector<Tensor> out = with_checkpoint ? checkpoint(f, x) : f(x);
    backward(sum(out[0] * out[2]) + sum(out[3] * out[0]));
    return std::pair(grad_of(x), grad_of(w));
  };
  const auto plain = run(false), replayed = run(true);
  check_same_bits(plain.first, replayed.first);
  check_same_bits(plain.second, replayed.second);
}

TEST_CASE("checkpoint: a value that leaks out of a region is refused where it is used") {
  const Tensor x = leaf({3}, 1);
  Tensor leaked;
  const Tensor y = checkpoint([&](const Tensor& v) { return sin(leaked = exp(v)); }, x);
  CHECK_THROWS_WITH(leaked * 2.0, Catch::Contains("left it other than by being returned"));
  leaked = Tensor();
  backward(sum(y));
}

TEST_CASE("checkpoint: a replay that does something else names op and module") {
  const Tensor x = leaf({3}, 1);
  const auto replay_error = [&](auto&& f) -> std::string {
    int run = 0;
    Tensor y;
    {
      ModuleScope module("blocks");
      y = checkpoint([&run, f](const Tensor& v) { return f(v, run++); }, x);
    }
    try {
      backward(sum(y));
    } catch (const ReplayMismatch& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string other_op = replay_error([](const Tensor& v, int run) { return run == 0 ? sin(v) : cos(v); });
  CHECK(other_op.find("'blocks'") != std::string::npos);
  CHECK(other_op.find("sin") != std::string::npos);
  const std::string other_shape = replay_error([](const Tensor& v, int run) { return sin(slice(v, 0, 0, run == 0 ? 3 : 2)); });
  CHECK(other_shape.find("[2]") != std::string::npos);
  CHECK(other_shape.find("[3]") != std::string::npos);
  CHECK(replay_error([](const Tensor& v, int run) { return run == 0 ? sin(sin(v)) : sin(v); }).find("ended after 1 ops") !=
        std::string::npos);
  CHECK(replay_error([](const Tensor& v, int run) { return run == 0 ? sin(v) : sin(sin(v)); }).find("after the last op") !=
        std::string::npos);
  clear_grad(x);
  backward(sum(x * 2.0));  // the tape and the thread's context are as before
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(3, 2));
  CHECK(thread_context().phase == Phase::forward);
  CHECK(thread_context().module == ModulePath::root());
}

TEST_CASE("checkpoint: certificate mode names the op whose bits changed") {
  const Tensor x = leaf({64}, 1);
  const auto f = [](const Tensor& v) { return sin(counted(v * 2.0)); };
  ModuleScope module("stem");
  backward(sum(checkpoint({.certify = true}, f, x)));  // equal bits pass
  const Tensor y = checkpoint({.certify = true}, f, x);
  drift = 1e-15;
  try {
    backward(sum(y));
    drift = 0;
    FAIL("expected ReplayMismatch");
  } catch (const ReplayMismatch& error) {
    drift = 0;
    const std::string text = error.what();
    CHECK(text.find("counted") != std::string::npos);
    CHECK(text.find("'stem'") != std::string::npos);
    CHECK(text.find("other bits") != std::string::npos);
  }
}

TEST_CASE("checkpoint: exceptions in forward and in replay leave the tape usable") {
  const Tensor x = leaf({3}, 1);
  const std::int64_t before = tape_size();
  CHECK_THROWS_AS(checkpoint([](const Tensor& v) -> Tensor { throw std::runtime_error(concat("forward ", sin(v).shape())); }, x),
                  std::runtime_error);
  CHECK(tape_size() == before);
  bool is_first = true;
  {
    const Tensor y = checkpoint(
        [&](const Tensor& v) {
          const Tensor s = sin(v);
          if (!std::exchange(is_first, false)) throw std::runtime_error("replay");
          return sin(s);
        },
        x);
    CHECK_THROWS_WITH(backward(sum(y)), "replay");
  }
  CHECK(tape_size() == before);
  CHECK(is_grad_enabled());
  backward(sum(sin(x)));
  CHECK(grad_of(x).to_vector<double>()[0] == Approx(std::cos(1.0)));
}

TEST_CASE("checkpoint: without gradients it is the plain call") {
  counted_runs = 0;
  const Tensor x = leaf({3}, 1);
  NoGradScope no_grad;
  const Tensor y = checkpoint([](const Tensor& v) { return counted(v); }, x);
  CHECK_FALSE(y.requires_grad());
  CHECK(counted_runs == 1);
}

TEST_CASE("checkpoint: retained regions can be gone through again, one result at a time too") {
  const Tensor x = leaf_values({4}, 1), w = leaf_values({4}, 2);
  const auto f = [&](const Tensor& v) { return std::pair(sin(v * w), exp(checkpoint([&](const Tensor& u) { return cos(u * w); }, v))); };
  const auto run = [&](bool with_checkpoint) {
    clear_grad(x);
    clear_grad(w);
    const auto [a, b] = with_checkpoint ? checkpoint(f, x) : f(x);
    backward(sum(a * b), {.retain = true});
    backward(sum(b), {.retain = true});
    backward(sum(a));
    return std::pair(grad_of(x), grad_of(w));
  };
  const auto plain = run(false), replayed = run(true);
  check_same_bits(plain.first, replayed.first);
  check_same_bits(plain.second, replayed.second);
  const Tensor y = checkpoint([&](const Tensor& v) { return sin(v); }, x);
  backward(sum(y));
  CHECK_THROWS_WITH(backward(sum(y)), Catch::Contains("released by an earlier backward"));
}

TEST_CASE("checkpoint: a region is refused inside an op, and backward inside a region") {
  const Tensor x = leaf({2}, 1);
  CHECK_THROWS_WITH(checkpoint([](const Tensor& v) { backward(sum(v)); return v; }, x), Catch::Contains("inside a checkpoint region"));
  backward(sum(sin(x)));
}

TEST_CASE("checkpoint: two threads train on their own tapes, as each would alone") {
  const auto train = [](int salt) {
    seed_random(std::uint64_t(salt));
    const Tensor w = leaf_values({32, 32}, salt);
    for (int step = 0; step < 20; ++step) {
      const Tensor x = test_values({8, 32}, DType::f64, salt + step);
      const Tensor y = checkpoint([&](const Tensor& v) { return dropout(gelu(linear(v, w, Tensor())), 0.3); }, x);
      backward(sum(y * y));
    }
    return std::pair(grad_of(w), tape_size());
  };
  const auto alone1 = train(1), alone2 = train(2);
  std::pair<Tensor, std::int64_t> together1, together2;
  std::thread first([&] { together1 = train(1); }), second([&] { together2 = train(2); });
  first.join();
  second.join();
  check_same_bits(alone1.first, together1.first);
  check_same_bits(alone2.first, together2.first);
  CHECK(together1.second == 0);
}

TEST_CASE("checkpoint: kept results are not computed again") {
  const Tensor x = leaf_values({4, 8}, 1), w = leaf_values({8, 8}, 2);
  const auto f = [&](const Tensor& v) { return sin(counted(linear(exp(v), w, Tensor()))); };
  const auto run = [&](const CheckpointOptions& options) {
    clear_grad(x);
    clear_grad(w);
    counted_runs = 0;
    backward(sum(checkpoint(options, f, x)));
    return std::pair(grad_of(x), grad_of(w));
  };
  const auto all = run({});
  CHECK(counted_runs == 2);
  const auto kept = run({.keep = {"counted"}});
  CHECK(counted_runs == 1);
  check_same_bits(all.first, kept.first);
  check_same_bits(all.second, kept.second);
}

TEST_CASE("checkpoint: a region keeps its inputs and nothing else") {
  const Device device = Device::new_cpu();
  Tensor x;
  {
    KindScope kind(MemoryKind::input);
    x = full({1000}, 0.3, DType::f64, device);
  }
  set_requires_grad(x);
  Tensor y = checkpoint([](const Tensor& v) { return sin(exp(sin(exp(v)))); }, exp(x));
  CHECK(device.live_bytes(MemoryKind::saved) == 8000);  // exp(x): its own output, and the region's input
  CHECK(device.live_bytes(MemoryKind::temporary) == 8000);  // y
  y = sum(y);
  CHECK(device.live_bytes(MemoryKind::saved) == 8000);
  backward(y);
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
}

TEST_CASE("tape: a norm's output is rebuilt for its reader, not kept") {
  const Device device = Device::new_cpu();
  const auto parameter = [&](const Shape& shape, double value) {
    KindScope kind(MemoryKind::parameter);
    Tensor t = full(shape, value, DType::f32, device);
    set_requires_grad(t);
    return t;
  };
  const Tensor gain = parameter({64}, 1), shift = parameter({64}, 0.5), w = parameter({64, 64}, 0.01);
  const Tensor x = test_values({32, 64}, DType::f32);
  Tensor input = empty({32, 64}, DType::f32, device);
  copy_values(input, x);
  set_requires_grad(input);
  const Tensor h = input * 1.0;
  const Tensor y = linear(layer_norm(h, gain, shift, 1e-5), w, Tensor());
  CHECK(device.live_bytes(MemoryKind::saved) == 32 * 64 * 4 + 2 * 32 * 4);  // h, mean, rstd
  backward(sum(y));
  CHECK(grad_of(w).defined());
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
}
