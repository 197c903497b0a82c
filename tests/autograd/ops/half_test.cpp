// Ops on f16 and bf16 tensors, forward and backward, against the same computation in f64 on the same rounded inputs.
// u is the relative change by one rounding, 2^-11 (f16) or 2^-8 (bf16).
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/concat.h>
#include <refrain/autograd/ops/convert.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/embedding.h>
#include <refrain/autograd/ops/in_place.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/half.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// Output and gradients of f, the output's gradient being `grad_out`, rounded to the output's dtype first.
std::vector<Tensor> output_and_grads(const Function& f, const std::vector<Tensor>& inputs, const Tensor& grad_out) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.without_autograd());
    set_requires_grad(leaves.back());
  }
  const Tensor y = f(leaves);
  backward(y, {.grad_out = as(grad_out, y.dtype())});
  std::vector<Tensor> result{y};
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Tensor grad = grad_of(leaves[i]);
    REQUIRE(grad.defined());
    CHECK(grad.dtype() == inputs[i].dtype());
    CHECK(grad.shape() == inputs[i].shape());
    result.push_back(grad);
  }
  return result;
}

// CHECKs that output and gradients are within roundings·u·|exact| of those in f64, with f32's errors, relative to `scale`
// (a bound of the magnitudes that enter), allowed on top: 64·2^-24·scale.
void check_rounded(const Function& f, const std::vector<Tensor>& inputs, double roundings, double scale = 8) {
  std::vector<Tensor> wide;
  for (const Tensor& input : inputs) wide.push_back(as(input, DType::f64));
  Shape shape;
  DType dtype;
  {
    NoGradScope no_grad;
    const Tensor y = f(inputs);
    shape = y.shape(), dtype = y.dtype();
  }
  const Tensor grad_out = as(random_tensor(shape, dtype, 99), DType::f64);
  const std::vector<Tensor> got = output_and_grads(f, inputs, grad_out), exact = output_and_grads(f, wide, grad_out);
  CHECK(got[0].dtype() == dtype);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double u = roundoff_of(got[i].dtype());
    INFO("result " << i << " of " << shape << " " << got[i].dtype());
    CHECK(num_outside(got[i], exact[i].to_vector<double>(), [&](std::size_t, double e) {
            return roundings * u * std::abs(e) + 64 * 0x1p-24 * scale + underflow_of(got[i].dtype());
          }) == 0);
  }
}

std::vector<std::pair<Shape, Shape>> operand_shapes() {
  return {{{}, {}},      {{1}, {1}},          {{0, 3}, {3}},    {{33}, {33}},    {{3, 5}, {5}},
          {{5}, {3, 5}}, {{31, 33}, {31, 1}}, {{3, 1}, {1, 5}}, {{2, 3, 4}, {}}, {{200, 7}, {7}}};
}

}  // namespace

// Results and gradients are rounded once, sums of broadcast gradients included: |y - f| <= u·|f| + f32's error.
TEST_CASE("arithmetic in 16 bits: results and gradients are rounded once, broadcast or not") {
  for (DType half : kHalves) {
    for (const auto& [a_shape, b_shape] : operand_shapes()) {
      const double terms = double(numel_of(broadcast_shapes(a_shape, b_shape, "test")) + 1);
      const Tensor a = random_tensor(a_shape, half, 1), b = random_tensor(b_shape, half, 2, 0.5, 2);
      const Tensor wide = random_tensor(b_shape, DType::f32, 2, 0.5, 2);
      for (const Tensor& other : {b, wide}) {
        INFO(half << " " << a_shape << " with " << other.dtype() << " " << b_shape);
        check_rounded([](const auto& x) { return x[0] + x[1]; }, {a, other}, 1, terms);
        check_rounded([](const auto& x) { return x[0] - x[1]; }, {a, other}, 1, terms);
        check_rounded([](const auto& x) { return x[0] * x[1]; }, {a, other}, 1, 2 * terms);
        check_rounded([](const auto& x) { return x[0] / x[1]; }, {a, other}, 1, 8 * terms);
        check_rounded([](const auto& x) { return x[1] - x[0]; }, {a, other}, 1, terms);
      }
    }
    const Tensor a = view::transpose(random_tensor({33, 5}, half, 1), 0, 1),
                 b = view::expand(random_tensor({1, 33}, DType::f32, 2, 1, 2), {5, 33});
    check_rounded([](const auto& x) { return x[0] * x[1]; }, {a, clone(b)}, 1);
    CHECK((a + b).dtype() == DType::f32);
    CHECK((b * a).dtype() == DType::f32);
    CHECK((a * 0.1).dtype() == half);
    CHECK((a + a).dtype() == half);
  }
}

TEST_CASE("arithmetic: a broadcast gradient's terms may leave f16's range, its sum is rounded once") {
  // Σ g·b with terms ±120,000: 0. And 4,096 terms of 2^-20·2^-10, each below the least f16: 2^-18.
  const Tensor a = tensor_of({1}, {1}, DType::f16), b = tensor_of({60000, -60000}, {2}, DType::f16);
  set_requires_grad(a);
  backward(a * b, {.grad_out = tensor_of({2, 2}, {2}, DType::f16)});
  CHECK(grad_of(a).item() == 0);
  const Tensor w = tensor_of({1}, {1}, DType::f16);
  set_requires_grad(w);
  backward(w * full({4096}, 0x1p-10, DType::f16), {.grad_out = full({4096}, 0x1p-20, DType::f16)});
  CHECK(grad_of(w).item() == 0x1p-18);
  // A row of ones, 4,096 times: a running bf16 sum would stop at 256.
  const Tensor bias = zeros({3}, DType::bf16);
  set_requires_grad(bias);
  backward(zeros({4096, 3}, DType::bf16) + bias, {.grad_out = full({4096, 3}, 1, DType::bf16)});
  CHECK(grad_of(bias).to_vector<double>() == std::vector<double>(3, 4096));
}

TEST_CASE("arithmetic: f16 with bf16 and f64 with others are refused by name") {
  const Tensor a = zeros({2}, DType::f16), b = zeros({2}, DType::bf16), d = zeros({2}, DType::f64);
  CHECK(message_of([&] { a + b; }) == "add: f16 and bf16 do not mix; convert one of them first");
  CHECK(message_of([&] { a* d; }) == "mul: operands must have one dtype, or be f32 and a 16-bit type, got f16 and f64");
  CHECK(message_of([&] { dropout_add(a, b, 0.5); }) == "dropout_add: f16 and bf16 do not mix; convert one of them first");
  CHECK(!message_of([&] { concat({a, zeros({2}, DType::f32), b}, 0); }).empty());
  CHECK(!message_of([&] { mse_loss(a, b); }).empty());
}

// Slopes that read the output read it rounded, by u·|y| at most: that moves them by u·slope for exp and sqrt, 3·u·slope for
// rsqrt, 2·u·slope for reciprocal. An output in [1/2, 1) is rounded by u/2 at most: that moves 1 - y² (tanh) by 2·|y|·u/2 <= u
// and y·(1 - y) (sigmoid) by |1 - 2·y|·u/2 <= u/2; smaller outputs move them less.
TEST_CASE("scalar ops and functions in 16 bits: rounded once, gradients once more for a rounded output") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{31}, Shape{33, 5}, Shape{1000}}) {
      const Tensor x = random_tensor(shape, half, 3, 0.5, 2), any = random_tensor(shape, half, 4, -3, 3);
      INFO(half << " " << shape);
      check_rounded([](const auto& v) { return v[0] * 0.1; }, {any}, 1);
      check_rounded([](const auto& v) { return v[0] + 0.1; }, {any}, 1);
      check_rounded([](const auto& v) { return 1.0 - v[0]; }, {any}, 1);
      check_rounded([](const auto& v) { return v[0] / 3.0; }, {any}, 1);
      check_rounded([](const auto& v) { return 3.0 / v[0]; }, {x}, 1, 16);
      check_rounded([](const auto& v) { return pow(v[0], 2.5); }, {x}, 1, 16);
      check_rounded([](const auto& v) { return -v[0]; }, {any}, 1);
      check_rounded([](const auto& v) { return abs(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return square(v[0]); }, {any}, 1, 16);
      check_rounded([](const auto& v) { return log(v[0]); }, {x}, 1);
      check_rounded([](const auto& v) { return sin(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return cos(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return gelu(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return gelu(v[0], GeluForm::tanh); }, {any}, 1);
      check_rounded([](const auto& v) { return silu(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return relu(v[0]); }, {any}, 1);
      check_rounded([](const auto& v) { return exp(v[0]); }, {any}, 2.01, 32);
      check_rounded([](const auto& v) { return sqrt(v[0]); }, {x}, 2.01);
      check_rounded([](const auto& v) { return reciprocal(v[0]); }, {x}, 3.03, 16);
      check_rounded([](const auto& v) { return rsqrt(v[0]); }, {x}, 4.05, 16);
      const double absolute = roundoff_of(half) * 0x1p24 / 64;  // u as a `scale`: |grad_out| <= 1
      check_rounded([](const auto& v) { return tanh(v[0]); }, {any}, 1.01, 1.01 * absolute + 1);
      check_rounded([](const auto& v) { return sigmoid(v[0]); }, {any}, 1.01, 0.51 * absolute + 1);
    }
  }
}

TEST_CASE("reductions in 16 bits: one rounding, gradients exact or rounded once") {
  for (DType half : kHalves) {
    for (const Shape& shape : {Shape{1, 1}, Shape{31, 33}, Shape{5, 1000}}) {
      const Tensor x = random_tensor(shape, half, 3);
      INFO(half << " " << shape);
      check_rounded([](const auto& v) { return sum(v[0]); }, {x}, 1, double(x.numel()));
      check_rounded([](const auto& v) { return sum(v[0], {0}, true); }, {x}, 1, double(x.numel()));
      check_rounded([](const auto& v) { return mean(v[0], {1}); }, {x}, 1);
      check_rounded([](const auto& v) { return max(v[0], 1).values; }, {x}, 0);
      check_rounded([](const auto& v) { return max(v[0], 0, true).values; }, {view::transpose(x, 0, 1)}, 0);
      check_rounded([](const auto& v) { return expand(reshape(v[0], {1, -1}), {7, v[0].numel()}); }, {x}, 1);
      check_rounded([](const auto& v) { return slice(transpose(v[0], 0, 1), 0, 0, 1); }, {x}, 0);
    }
    // mean over 100,000 ones of f16 is 1, though their sum is no f16; a gradient of 1/100,000 is a subnormal f16.
    const Tensor ones = full({100000}, 1, half);
    set_requires_grad(ones);
    const Tensor m = mean(ones);
    CHECK(m.item() == 1);
    backward(m);
    CHECK(std::abs(grad_of(ones).to_vector<double>()[77] - 1e-5) <= roundoff_of(half) * 1e-5 + underflow_of(half));
  }
  const Tensor grad = random_tensor({4, 3, 5}, DType::f32, 1);
  CHECK(is_same(sum_to(grad, {4, 3, 5}, DType::f32), grad));
  CHECK(sum_to(grad, {4, 3, 5}, DType::bf16).dtype() == DType::bf16);
  check_same_bits(sum_to(view::transpose(grad, 0, 2), {3, 1}, DType::bf16), as(sum_to(view::transpose(grad, 0, 2), {3, 1}), DType::bf16));
  check_same_bits(sum_to(as(grad, DType::f16), {5}, DType::f32), sum_to(as(as(grad, DType::f16), DType::f32), {5}));
}

// Backward reads the rounded y. softmax: y·(g - Σ g·y) moves by u·(|g| + Σ|g·y|)·y from each of its factors, 2·2·u in all for
// |g| <= 1, y <= 1, and once more as it is rounded. log_softmax: exp(y) moves by u·|y|·exp(y), at most u/e.
TEST_CASE("softmax ops in 16 bits: output and gradient against f64, masked rows finite") {
  for (DType half : kHalves) {
    const double absolute = roundoff_of(half) * 0x1p24 / 64;
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 33}, Shape{33, 5}}) {
      const Tensor x = random_tensor(shape, half, 3, -4, 4);
      for (int dim : {0, 1, -1}) {
        INFO(half << " " << shape << " " << dim);
        check_rounded([=](const auto& v) { return softmax(v[0], dim); }, {x}, 1, 4 * absolute);
        check_rounded([=](const auto& v) { return log_softmax(v[0], dim); }, {x}, 1,
                      double(shape[dim < 0 ? 1 : dim]) * 0.37 * absolute + 1);
      }
    }
    const Tensor scores = tensor_of({1, 2, 5, 1, 2, 3}, {2, 3}, half),
                 mask = from_values(std::vector<std::uint8_t>{0, 0, 1, 1, 1, 1}, {2, 3});
    set_requires_grad(scores);
    const Tensor y = softmax(where(convert(mask, DType::boolean), full({}, -HUGE_VAL, half), scores), 1);
    CHECK(num_outside(y, {0.26894142, 0.73105858, 0, 0, 0, 0}, [&](std::size_t, double e) { return roundoff_of(half) * e + 1e-8; }) == 0);
    backward(y, {.grad_out = random_tensor({2, 3}, half, 1)});
    const std::vector<double> grad = grad_of(scores).to_vector<double>();
    for (std::size_t i = 0; i < 6; ++i) CHECK((std::isfinite(grad[i]) && (i < 2 || grad[i] == 0)));
  }
}

TEST_CASE("losses of 16-bit inputs are f32, gradients have the inputs' dtypes") {
  for (DType half : kHalves) {
    const Tensor targets = from_values(std::vector<std::int64_t>{3, -100, 0, 30, 7}, {5}), logits = random_tensor({5, 31}, half, 1, -4, 4);
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      const CrossEntropyOptions o{.label_smoothing = 0.1, .reduction = reduction};
      INFO(half << " " << name_of(reduction));
      CHECK(cross_entropy(logits, targets, o).dtype() == DType::f32);
      check_rounded([&](const auto& v) { return cross_entropy(v[0], targets, o); }, {logits}, 1);
      const Tensor x = random_tensor({33, 3}, half, 2), target = random_tensor({33, 3}, half, 3),
                   wide = random_tensor({33, 3}, DType::f32, 3);
      check_rounded([&](const auto& v) { return mse_loss(v[0], v[1], reduction); }, {x, target}, 1, 100);
      check_rounded([&](const auto& v) { return mse_loss(v[0], v[1], reduction); }, {x, wide}, 1, 100);
      check_rounded([&](const auto& v) { return mse_loss(v[1], v[0], reduction); }, {x, wide}, 1, 100);
    }
    // All labels ignored: 0, gradients exactly 0.
    const Tensor one = tensor_of({1, 2, 3}, {1, 3}, half);
    set_requires_grad(one);
    const Tensor loss = cross_entropy(one, from_values(std::vector<std::int64_t>{-100}, {1}));
    backward(loss);
    CHECK(loss.item() == 0);
    CHECK(grad_of(one).to_vector<double>() == std::vector<double>{0, 0, 0});
    CHECK(count_correct(one, from_values(std::vector<std::int64_t>{2}, {1})) == 1);
  }
}

TEST_CASE("dropout ops in 16 bits: f32's mask; dropout_add mixes f32 and 16 bits, each gradient in its input's dtype") {
  for (DType half : kHalves) {
    const Tensor x = random_tensor({33, 31}, half, 1), residual = random_tensor({33, 31}, half, 2),
                 wide = random_tensor({33, 31}, DType::f32, 2);
    const auto seeded = [](const Function& f) {
      return [f](const std::vector<Tensor>& v) {
        seed_random(4);
        return f(v);
      };
    };
    for (double p : {0.0, 0.3, 1.0}) {
      INFO(half << " " << p);
      check_rounded([p](const auto& v) { return dropout(v[0], p, Generator(3)); }, {x}, 1);
      check_rounded([p](const auto& v) { return stochastic_depth(v[0], p, Generator(3)); }, {view::transpose(x, 0, 1)}, 1);
      check_rounded(seeded([p](const auto& v) { return dropout_add(v[0], v[1], p); }), {x, residual}, 1);
      check_rounded(seeded([p](const auto& v) { return dropout_add(v[0], v[1], p); }), {x, wide}, 1);
      check_rounded(seeded([p](const auto& v) { return dropout_add(v[1], v[0], p); }), {x, wide}, 1);
      CHECK(dropout_add(x, wide, p).dtype() == DType::f32);
      CHECK(dropout_add(x, residual, p).dtype() == half);
    }
  }
}

TEST_CASE("embedding, concat, where and convert in 16 bits") {
  for (DType half : kHalves) {
    const Tensor table = random_tensor({7, 33}, half, 1), indices = from_values(std::vector<std::int64_t>{3, 0, 3, 3, 6, 0}, {2, 3});
    INFO(half);
    check_rounded([&](const auto& v) { return embedding(indices, v[0]); }, {table}, 1);
    check_rounded([&](const auto& v) { return embedding(indices, v[0], 3); }, {table}, 1);
    const Tensor token = random_tensor({1, 1, 8}, DType::f32, 2), patches = random_tensor({5, 4, 8}, half, 3);
    const auto join = [](const std::vector<Tensor>& v) { return concat(std::vector<Tensor>{expand(v[0], {5, 1, 8}), v[1]}, 1); };
    check_rounded(join, {token, patches}, 1);
    CHECK(join({token, patches}).dtype() == DType::f32);
    check_rounded(join, {as(token, half), patches}, 1);
    const Tensor condition = as(from_values(std::vector<std::int64_t>{1, 0, 1, 1, 0, 0, 1, 0}, {8}), DType::boolean);
    check_rounded([&](const auto& v) { return where(condition, v[0], v[1]); }, {token, patches}, 1);
    check_rounded([&](const auto& v) { return where(condition, v[1], v[0]); }, {as(token, half), patches}, 1);
    // Once as it goes to 16 bits, once in the gradient.
    const Tensor wide = random_tensor({33}, DType::f32, 5);
    set_requires_grad(wide);
    backward(convert(wide, half), {.grad_out = full({33}, 1, half)});
    CHECK(grad_of(wide).dtype() == DType::f32);
    CHECK(grad_of(wide).to_vector<double>() == std::vector<double>(33, 1));
  }
}

TEST_CASE("in-place functions in 16 bits: rounded once, f32 operands as they are") {
  for (DType half : kHalves) {
    const Tensor x = random_tensor({33, 5}, half, 1), wide = random_tensor({5}, DType::f32, 2);
    const auto changed = [&](auto&& f) {
      const Tensor t = clone(x);
      f(t);
      return t;
    };
    const Tensor x32 = as(x, DType::f32);
    check_same_bits(changed([&](const Tensor& t) { add_(t, wide); }), as(x32 + wide, half));
    check_same_bits(changed([&](const Tensor& t) { mul_(t, wide); }), as(x32 * wide, half));
    check_same_bits(changed([](const Tensor& t) { add_(t, 0.1); }), as(x32 + 0.1, half));
    check_same_bits(changed([](const Tensor& t) { mul_(t, 0.1); }), as(x32 * 0.1, half));
    check_same_bits(changed([](const Tensor& t) { relu_(t); }), as(relu(x32), half));
    check_same_bits(changed([&](const Tensor& t) {
                      copy_(t, view::expand(wide, {33, 5}));
                    }),
                    as(contiguous_values(view::expand(wide, {33, 5})), half));
    const Tensor sum = clone(wide), expected = wide + as(clone(view::select(x, 0, 0)), DType::f32);
    add_(sum, view::select(x, 0, 0));
    check_same_bits(sum, expected);
  }
}

TEST_CASE("ops in 16 bits: values rebuilt and replayed have the bits of the first run") {
  for (DType half : kHalves) {
    const Tensor w = random_tensor({33}, DType::f32, 7), x = random_tensor({5, 33}, half, 8);
    const auto block = [&](const Tensor& in) {
      const Tensor h = gelu(in * w);  // f32
      return softmax(convert(silu(convert(h, half)) * 0.7, half) + in, 1) * tanh(in);
    };
    const auto train = [&](bool is_checkpointed) {
      const Tensor leaf = clone(x), scale = clone(w);
      set_requires_grad(leaf);
      set_requires_grad(scale);
      const Tensor in = leaf * 1.5;
      const Tensor y = is_checkpointed ? checkpoint(block, in) : block(in);
      backward(sum(y * scale));
      return std::vector<Tensor>{y, grad_of(leaf), grad_of(scale)};
    };
    const std::vector<Tensor> plain = train(false), replayed = train(true);
    for (std::size_t i = 0; i < plain.size(); ++i) check_same_bits(plain[i], replayed[i]);
    CHECK(plain[1].dtype() == half);
    CHECK(plain[2].dtype() == DType::f32);
  }
}
