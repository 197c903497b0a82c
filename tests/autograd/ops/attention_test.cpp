// Attention's rule: gradients, what is saved, random numbers, and the packed form against the plain one.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/attention.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>

#include <refrain/tests/support/catch.h>

#include <cmath>

using namespace refrain;
using namespace refrain::testing;

namespace {

struct Case {
  std::int64_t batch, queries, keys, heads, width;
  AttentionOptions options;
};

Tensor some_mask(std::int64_t batch, std::int64_t keys) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < batch * keys; ++i) bytes.push_back(i >= keys && i % 3 != 1);  // sample 0 sees nothing
  return from_values(bytes, {batch, keys});
}

std::vector<Case> cases() {
  return {{1, 1, 1, 1, 1, {}},
          {2, 3, 5, 2, 3, {}},
          {2, 5, 5, 1, 8, {.causal = true}},
          {1, 4, 2, 2, 4, {.causal = true}},
          {2, 3, 6, 2, 5, {.scale = 0.7, .key_mask = some_mask(2, 6)}},
          {0, 3, 3, 2, 4, {}},
          {2, 4, 7, 1, 3, {.dropout = 0.4}}};
}

}  // namespace

TEST_CASE("attention: gradients agree with differences") {
  for (const Case& c : cases()) {
    CAPTURE(c.batch, c.queries, c.keys, c.heads, c.width, c.options.causal, c.options.dropout);
    const auto f = [&](std::vector<Tensor> x) {
      seed_random(5);  // the same weights are dropped in every call
      return attention(x[0], x[1], x[2], c.options);
    };
    const Shape keys = {c.batch, c.keys, c.heads, c.width};
    gradcheck(f, {test_values({c.batch, c.queries, c.heads, c.width}, DType::f64, 1), test_values(keys, DType::f64, 2),
                  test_values(keys, DType::f64, 3)});
  }
}

TEST_CASE("attention: strided views of any kind are read in place or copied") {
  const Tensor q = view::transpose(test_values({2, 2, 5, 3}, DType::f64, 1), 1, 2);  // heads first in memory
  const Tensor k = view::transpose(test_values({2, 4, 3, 2}, DType::f64, 2), 2, 3);  // last dim strided
  const Tensor v = view::slice(test_values({2, 8, 2, 3}, DType::f64, 3), 1, 0, 8, 2);
  gradcheck([](std::vector<Tensor> x) { return attention(x[0], x[1], x[2]); }, {q, k, v});
}

TEST_CASE("attention_packed: gradients agree with differences") {
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.causal = true, .dropout = 0.3}, AttentionOptions{.key_mask = some_mask(2, 5)}}) {
    const auto f = [&](std::vector<Tensor> x) {
      seed_random(5);
      return attention_packed(x[0], 2, options);
    };
    gradcheck(f, {test_values({2, 5, 18})});
    gradcheck(f, {view::transpose(test_values({2, 18, 5}), 1, 2)});
  }
}

TEST_CASE("attention_packed: the same bits as attention over its three thirds") {
  const Tensor qkv = test_values({3, 50, 3 * 32}, DType::f32);
  const Tensor split = view::reshape(qkv, {3, 50, 3, 2, 16});
  const Tensor q = clone(view::select(split, 2, 0)), k = clone(view::select(split, 2, 1)), v = clone(view::select(split, 2, 2));
  const Tensor grad_out = test_values({3, 50, 32}, DType::f32, 9);
  for (const Tensor& leaf : {qkv, q, k, v}) set_requires_grad(leaf);
  seed_random(1);
  const Tensor packed = attention_packed(qkv, 2, {.causal = true, .dropout = 0.2});
  seed_random(1);
  const Tensor plain = attention(q, k, v, {.causal = true, .dropout = 0.2});
  check_same_bits(detach(packed), view::reshape(detach(plain), {3, 50, 32}));
  backward(packed, {.grad_out = grad_out});
  backward(plain, {.grad_out = view::reshape(grad_out, {3, 50, 2, 16})});
  const Tensor grads = view::reshape(grad_of(qkv), {3, 50, 3, 2, 16});
  check_same_bits(clone(view::select(grads, 2, 0)), grad_of(q));
  check_same_bits(clone(view::select(grads, 2, 1)), grad_of(k));
  check_same_bits(clone(view::select(grads, 2, 2)), grad_of(v));
}

TEST_CASE("attention: dropped weights belong to the sample in the global batch") {
  const Tensor q = test_values({4, 6, 2, 8}, DType::f32, 1), k = test_values({4, 7, 2, 8}, DType::f32, 2),
               v = test_values({4, 7, 2, 8}, DType::f32, 3);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    seed_random(3);
    set_random_position(11, begin);
    StageScope stage(2);
    const auto part = [&](const Tensor& t) { return view::slice(t, 0, begin, end); };
    return attention(part(q), part(k), part(v), {.dropout = 0.5});
  };
  const Tensor all = run(0, 4);
  check_same_bits(clone(view::slice(all, 0, 0, 2)), run(0, 2));
  check_same_bits(clone(view::slice(all, 0, 2, 4)), run(2, 4));
}

TEST_CASE("attention: wrong inputs are refused by name") {
  const Tensor x = test_values({2, 5, 12});
  CHECK_THROWS_AS(attention(x, x, x), InvalidArgument);
  CHECK_THROWS_AS(attention_packed(x, 5), InvalidArgument);
  CHECK_THROWS_AS(attention_packed(x, 0), InvalidArgument);
  CHECK_THROWS_AS(attention_packed(test_values({2, 12}), 2), InvalidArgument);
  CHECK_THROWS_AS(attention_packed(x, 2, {.dropout = 1.5}), InvalidArgument);
  CHECK_THROWS_AS(attention_packed(x, 2, {.key_mask = some_mask(2, 4)}), InvalidArgument);
}

TEST_CASE("attention: queries, keys and values that are views of one tensor survive a checkpoint region") {
  const Tensor x = test_values({2, 5, 8}, DType::f32, 1), weight = test_values({24, 8}, DType::f32, 2);
  const auto block = [weight](const Tensor& input) {
    const Tensor split = reshape(linear(input, weight, Tensor()), {2, 5, 3, 2, 4});
    seed_random(4);
    return attention(select(split, 2, 0), select(split, 2, 1), select(split, 2, 2), {.causal = true, .dropout = 0.2});
  };
  const Tensor grad_out = test_values({2, 5, 2, 4}, DType::f32, 3);
  std::vector<Tensor> grads;
  for (const bool in_region : {false, true}) {
    const Tensor input = clone(x);
    set_requires_grad(input);
    set_requires_grad(weight);
    clear_grad(weight);
    backward(in_region ? checkpoint(block, input) : block(input), {.grad_out = grad_out});
    grads.push_back(grad_of(input));
    grads.push_back(clone(grad_of(weight)));
  }
  check_same_bits(grads[0], grads[2]);
  check_same_bits(grads[1], grads[3]);
}

TEST_CASE("attention: forward leaves the output and a number a query, backward one gradient of the input's size") {
  const Tensor qkv = test_values({2, 50, 3 * 32}, DType::f32), grad_out = test_values({2, 50, 32}, DType::f32);
  set_requires_grad(qkv);
  const Device device = Device::cpu();
  const std::int64_t before = device.live_bytes();
  {
    const Tensor out = attention_packed(qkv, 2, {.causal = true, .dropout = 0.1});
    CHECK(device.live_bytes() - before == out.bytes() + 2 * 2 * 50 * 4);
    device.reset_peak();
    const std::int64_t live = device.live_bytes();
    backward(out, {.grad_out = grad_out});
    CHECK(device.peak_bytes() - live == qkv.bytes());
  }
  CHECK(device.live_bytes() - before == qkv.bytes());
}

TEST_CASE("attention: 16-bit packed and plain forms agree to the bit, plain and checkpointed alike") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor qkv = test_values({2, 9, 3 * 2 * 5}, dtype, 1), grad_out = test_values({2, 9, 10}, dtype, 2);
    set_requires_grad(qkv);
    const AttentionOptions options{.causal = true, .dropout = 0.25, .key_mask = some_mask(2, 9)};
    const auto packed = [&](const Tensor& x) { return attention_packed(x, 2, options); };
    const auto plain = [&](const Tensor& x) {
      const Tensor split = reshape(x, {2, 9, 3, 2, 5});
      return reshape(attention(select(split, 2, 0), select(split, 2, 1), select(split, 2, 2), options), {2, 9, 10});
    };
    const auto run = [&](const auto& f) {
      seed_random(3);
      clear_grad(qkv);
      const Tensor y = f(qkv);
      CHECK(y.dtype() == dtype);
      backward(y, {.grad_out = grad_out});
      return std::pair{y, grad_of(qkv)};
    };
    const auto [y, grad] = run(packed);
    const auto [y_plain, grad_plain] = run(plain);
    const auto [y_again, grad_again] = run([&](const Tensor& x) { return checkpoint(packed, x); });
    check_same_bits(y, y_plain);
    check_same_bits(grad, grad_plain);
    check_same_bits(y, y_again);
    check_same_bits(grad, grad_again);
  }
}
