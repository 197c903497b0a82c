// f16 and bf16 where they are weakest: sums and products that leave the range although the result does not, results that
// do leave it, masked rows, subnormals, infinities and NaN. Norms and attention have more of it beside their kernels' tests.
#include <refrain/autograd/all.h>
#include <refrain/tests/support/half.h>

#include <string>

using namespace refrain;

namespace {

using Values = std::vector<double>;

constexpr double kInf = HUGE_VAL;
const double kNan = std::nan("");

Tensor leaf(const Values& values, const Shape& shape, DType dtype) {
  const Tensor t = tensor_of(values, shape, dtype);
  set_requires_grad(t);
  return t;
}

Values values_of(const Tensor& t) { return detach(t).to_vector<double>(); }

// The gradient of x that y's gradient `g` brings.
Values gradient(const Tensor& x, const Tensor& y, const Values& g) {
  clear_grad(x);
  backward(y, {.grad_out = tensor_of(g, y.shape(), y.dtype())});
  return values_of(grad_of(x));
}

Values repeated(std::size_t count, const Values& pattern) {
  Values values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(pattern[i % pattern.size()]);
  return values;
}

struct Unary {
  std::string name;
  std::function<Tensor(const Tensor&)> op;
};

const std::vector<Unary> kUnary = {
    {"neg", [](const Tensor& x) { return neg(x); }},
    {"abs", [](const Tensor& x) { return abs(x); }},
    {"square", [](const Tensor& x) { return square(x); }},
    {"log", [](const Tensor& x) { return log(x); }},
    {"sin", [](const Tensor& x) { return sin(x); }},
    {"cos", [](const Tensor& x) { return cos(x); }},
    {"exp", [](const Tensor& x) { return exp(x); }},
    {"sqrt", [](const Tensor& x) { return sqrt(x); }},
    {"rsqrt", [](const Tensor& x) { return rsqrt(x); }},
    {"reciprocal", [](const Tensor& x) { return reciprocal(x); }},
    {"pow", [](const Tensor& x) { return pow(x, 1.5); }},
    {"add scalar", [](const Tensor& x) { return x + 1; }},
    {"mul scalar", [](const Tensor& x) { return x * 2; }},
    {"div scalar", [](const Tensor& x) { return x / 2; }},
    {"scalar div", [](const Tensor& x) { return 1 / x; }},
    {"gelu", [](const Tensor& x) { return gelu(x); }},
    {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }},
    {"silu", [](const Tensor& x) { return silu(x); }},
    {"relu", [](const Tensor& x) { return relu(x); }},
    {"tanh", [](const Tensor& x) { return tanh(x); }},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); }},
    {"dropout", [](const Tensor& x) { return dropout(x, 1e-9); }},
    {"softmax", [](const Tensor& x) { return softmax(x, 0); }},
    {"log_softmax", [](const Tensor& x) { return log_softmax(x, 0); }},
    {"sum", [](const Tensor& x) { return sum(x, {0}, true); }},
    {"mean", [](const Tensor& x) { return mean(x, {0}, true); }},
    {"max", [](const Tensor& x) { return max(x, 0, true).values; }},
    {"layer_norm", [](const Tensor& x) { return layer_norm(x, {}, {}, 1e-5); }},
    {"batch_norm",
     [](const Tensor& x) {
       return batch_norm2d(reshape(x, {-1, 1}), {}, {}, {}, {});
     }},
    {"matmul",
     [](const Tensor& x) {
       return matmul(reshape(x, {1, -1}), reshape(x, {-1, 1}));
     }},
    {"linear",
     [](const Tensor& x) {
       return linear(reshape(x, {1, -1}), reshape(x, {1, -1}));
     }},
    {"conv2d",
     [](const Tensor& x) {
       return conv2d(reshape(x, {1, 1, 1, -1}), reshape(x, {1, 1, 1, -1}));
     }},
    {"mse_loss", [](const Tensor& x) { return mse_loss(x, x * 0.5); }},
    {"cross_entropy",
     [](const Tensor& x) {
       return cross_entropy(reshape(x, {1, -1}), zeros({1}, DType::i64));
     }},
};

}  // namespace

TEST_CASE("hostile ranges: sums and products beyond 65,504 whose result fits come out exactly") {
  const DType f16 = DType::f16;
  CHECK(values_of(sum(tensor_of(repeated(7, {60000, -60000}), {7}, f16))) == Values{60000});
  CHECK(values_of(sum(tensor_of({60000, 60000, 60000, -60000, -60000}, {5}, f16))) == Values{60000});
  CHECK(values_of(mean(tensor_of(repeated(1000, {60000}), {1000}, f16))) == Values{60000});
  // 300·300 - 300·299: both products are beyond f16.
  const Tensor row = tensor_of({300, 300}, {1, 2}, f16), column = tensor_of({300, -299}, {2, 1}, f16);
  CHECK(values_of(matmul(row, column)) == Values{300});
  CHECK(values_of(linear(row, transpose(column, 0, 1))) == Values{300});
  CHECK(values_of(linear(tensor_of({300}, {1, 1}, f16), tensor_of({300}, {1, 1}, f16), tensor_of({-60000}, {1}, f16))) == Values{30000});
  CHECK(values_of(conv2d(reshape(row, {1, 1, 1, 2}), reshape(column, {1, 1, 1, 2}))) == Values{300});
  // Dropped: -40,000. Kept: 80,000 - 40,000.
  for (const double y : values_of(dropout_add(full({64}, 40000, f16), full({64}, -40000, f16), 0.5))) CHECK(std::abs(y) == 40000);
  // x³ inside: 2.8e14.
  const Tensor ends = tensor_of({-65504, 65504}, {2}, f16);
  CHECK(values_of(gelu(ends, GeluForm::tanh)) == Values{0, 65504});
  CHECK(values_of(gelu(ends)) == Values{0, 65504});
  CHECK(values_of(silu(ends)) == Values{0, 65504});
  CHECK(values_of(softmax(ends, 0)) == Values{0, 1});
  CHECK(values_of(mse_loss(ends, neg(ends)))[0] == double(float(4.0 * 65504 * 65504)));  // an f32
}

TEST_CASE("hostile ranges: gradients that are sums beyond 65,504 on the way come out exactly") {
  const DType f16 = DType::f16;
  const Values g{60000, 60000, -60000};
  const Tensor table = leaf({1, 2}, {2, 1}, f16);
  CHECK(gradient(table, embedding(from_values(std::vector<std::int64_t>{1, 1, 1}, {3}), table), g) == Values{0, 60000});
  const Tensor b = leaf({1}, {1}, f16);
  CHECK(gradient(b, tensor_of({1, 2, 3}, {3}, f16) + b, g) == Values{60000});
  CHECK(gradient(b, expand(b, {3}), g) == Values{60000});
  const Tensor w = leaf({1}, {1, 1}, f16), bias = leaf({0}, {1}, f16), x = tensor_of({300, 300, -300}, {3, 1}, f16);
  CHECK(gradient(w, linear(x, w, bias), {300, 300, 500}) == Values{30000});
  CHECK(values_of(grad_of(bias)) == Values{1100});
  const Tensor norm_bias = leaf({0, 0}, {2}, f16);
  CHECK(gradient(norm_bias, layer_norm(tensor_of(repeated(6, {1, 2}), {3, 2}, f16), {}, norm_bias, 1e-5),
                 {60000, 1, 60000, 1, -60000, 1}) == Values{60000, 3});
}

TEST_CASE("hostile ranges: a result beyond the range is an infinity, not the largest number") {
  for (const DType half : kHalves) {
    const double most = largest_of(half);
    const Tensor x = leaf({most, -most}, {2}, half);
    CHECK(values_of(x + x) == Values{kInf, -kInf});
    CHECK(values_of(x * 2) == Values{kInf, -kInf});
    CHECK(values_of(square(x)) == Values{kInf, kInf});
    CHECK(values_of(log_softmax(x, 0)) == Values{0, -kInf});
    CHECK(values_of(sum(abs(x))) == Values{kInf});
    CHECK(values_of(exp(x)) == Values{kInf, 0});
    CHECK(values_of(matmul(reshape(x, {1, 2}), reshape(x, {2, 1}))) == Values{kInf});
    CHECK(gradient(x, x * 4, {most, 1}) == Values{kInf, 4});
  }
  CHECK(values_of(convert(full({1}, 70000, DType::f32), DType::f16)) == Values{kInf});
  CHECK(values_of(reciprocal(full({1}, 0x1p-24, DType::f16))) == Values{kInf});
  CHECK(values_of(log_softmax(tensor_of({65504, -65504}, {2}, DType::bf16), 0))[1] == -131072);  // 65,536·2
}

TEST_CASE("hostile ranges: masked scores weigh nothing, a masked row gives zeros and zero gradients") {
  for (const DType half : kHalves) {
    const Tensor scores = leaf({1, 2, 3}, {1, 3}, half);
    // What -1e9 and -65,504 - 16 become in f16.
    const Tensor mask = tensor_of({0, 0, -1e9}, {1, 3}, half);
    const Tensor y = softmax(scores + mask, 1);
    const Values p{rounded_to(0.2689414213699951, half), rounded_to(0.7310585786300049, half), 0};
    CHECK(values_of(y) == p);
    const Values grad = gradient(scores, y, {1, 0, 0});
    CHECK(std::abs(grad[0] - 0.19661193) <= 3 * roundoff_of(half) * 0.27);
    CHECK(grad[2] == 0);

    const Tensor hidden = leaf({1, 2, 3}, {1, 3}, half);
    const Tensor nothing = softmax(hidden + full({1, 3}, -kInf, half), 1);
    CHECK(values_of(nothing) == Values{0, 0, 0});
    CHECK(gradient(hidden, nothing, {1, 2, 3}) == Values{0, 0, 0});

    // Field case 39: every target ignored, then one of two.
    const Tensor one = leaf({1, 2, 3}, {1, 3}, half);
    const Tensor loss = cross_entropy(one, from_values(std::vector<std::int64_t>{-100}, {1}));
    CHECK(values_of(loss) == Values{0});
    CHECK(gradient(one, loss, {1}) == Values{0, 0, 0});
    const Tensor two = leaf({1, 2, 3, 4, 0, -1}, {2, 3}, half);
    const Tensor second = cross_entropy(two, from_values(std::vector<std::int64_t>{2, -100}, {2}));
    CHECK(std::abs(values_of(second)[0] - 0.40760596) <= 1e-6);
    const Values expected{0.09003057, 0.24472847, -0.33475904, 0, 0, 0}, got = gradient(two, second, {1});
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(std::abs(got[i] - expected[i]) <= roundoff_of(half) * std::abs(expected[i]) + 1e-7 * (expected[i] != 0));
  }
}

TEST_CASE("hostile ranges: f16 subnormals are numbers like others") {
  // They are ordinary f32 numbers: 2^-24 … 2^-14.
  const DType f16 = DType::f16;
  const double least = 0x1p-24;
  const Tensor x = leaf({least, 3 * least, -1000 * least}, {3}, f16);
  CHECK(values_of(x + x) == Values{2 * least, 6 * least, -2000 * least});
  CHECK(values_of(x * 0.5) == Values{0, 2 * least, -500 * least});  // halves go to the even neighbour
  CHECK(values_of(neg(x)) == Values{-least, -3 * least, 1000 * least});
  CHECK(values_of(abs(x)) == Values{least, 3 * least, 1000 * least});
  CHECK(values_of(relu(x)) == Values{least, 3 * least, 0});
  CHECK(values_of(tanh(x)) == Values{least, 3 * least, -1000 * least});
  CHECK(values_of(sum(x)) == Values{-996 * least});
  CHECK(values_of(matmul(reshape(x, {1, 3}), tensor_of({1024, 1024, 0}, {3, 1}, f16))) == Values{4096 * least});
  CHECK(values_of(sqrt(abs(x)))[0] == 0x1p-12);
  CHECK(values_of(layer_norm(tensor_of({least, -least}, {1, 2}, f16), {}, {}, 0)) == Values{1, -1});
  CHECK(gradient(x, x * 2, {least, least, least}) == Values{2 * least, 2 * least, 2 * least});
  // A product too small for f16 on its own counts in f32: 1,024 · 2^-12 · 2^-13.
  CHECK(values_of(matmul(full({1, 1024}, 0x1p-12, f16), full({1024, 1}, 0x1p-13, f16))) == Values{0x1p-15});
}

TEST_CASE("hostile ranges: bf16 subnormals are moved as they are, arithmetic may take them for 0") {
  // Below 2^-126 they are f32 subnormals, which kernels may flush.
  const DType bf16 = DType::bf16;
  const Values tiny{0x1p-133, -3 * 0x1p-133, 0x1p-127};
  const Tensor x = tensor_of(tiny, {3}, bf16);
  CHECK(values_of(x) == tiny);
  CHECK(values_of(contiguous(slice(concat({x, x}, 0), 0, 1, 6, 2))) == Values{tiny[1], tiny[0], tiny[2]});
  const Tensor table = reshape(x, {3, 1});
  CHECK(values_of(embedding(from_values(std::vector<std::int64_t>{2, 0}, {2}), table)) == Values{tiny[2], tiny[0]});
  for (const Tensor& y : {x + x, x * 2, matmul(table, full({1, 1}, 2, bf16))}) {
    const Values got = values_of(y);
    for (std::size_t i = 0; i < 3; ++i) CHECK((got[i] == 2 * tiny[i] || got[i] == 0));
  }
  // What is not subnormal is not flushed.
  CHECK(values_of(full({1}, 0x1p-126, bf16) * 1) == Values{0x1p-126});
}

TEST_CASE("hostile ranges: NaN is never hidden, forward or backward") {
  for (const DType half : kHalves) {
    for (const Unary& f : kUnary) {
      INFO(f.name << " " << half);
      const Tensor x = leaf({0.5, kNan, 1.5}, {3}, half);
      const Tensor y = f.op(x);
      const Values out = values_of(y);
      const bool is_elementwise = y.shape() == x.shape() && f.name != "softmax" && f.name != "log_softmax" && f.name != "layer_norm";
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (!is_elementwise || f.name == "batch_norm" || i == 1));
      // A NaN that arrives from above: to the one element it belongs to, or through sums to all.
      const Tensor clean = leaf({0.5, 1, 1.5}, {3}, half);
      const Tensor z = f.op(clean);
      Values g(std::size_t(z.numel()), 1.0);
      g[0] = kNan;
      const Values grad = gradient(clean, z, g);
      const bool goes_elsewhere = f.name == "max" || f.name == "dropout";
      CHECK((goes_elsewhere || std::isnan(grad[0])));
      CHECK(std::any_of(grad.begin(), grad.end(), [](double v) { return std::isnan(v); }));
    }
  }
}

TEST_CASE("hostile ranges: an infinity stays one, becomes NaN or reaches its limit") {
  for (const DType half : kHalves) {
    const Tensor x = tensor_of({kInf, -kInf}, {2}, half);
    CHECK(values_of(x + 1) == Values{kInf, -kInf});
    CHECK(values_of(relu(x)) == Values{kInf, 0});
    CHECK(values_of(gelu(x)) == Values{kInf, 0});
    CHECK(values_of(gelu(x, GeluForm::tanh)) == Values{kInf, 0});
    CHECK(values_of(silu(x)) == Values{kInf, 0});
    CHECK(values_of(tanh(x)) == Values{1, -1});
    CHECK(values_of(sigmoid(x)) == Values{1, 0});
    CHECK(values_of(exp(x)) == Values{kInf, 0});
    CHECK(values_of(max(x, 0).values) == Values{kInf});
    CHECK(values_of(sum(abs(x))) == Values{kInf});
    for (const Tensor& y : {sum(x), mean(x), x - x, softmax(x, 0), layer_norm(x, {}, {}, 1e-5),
                            matmul(reshape(x, {1, 2}), full({2, 1}, 1, half)), linear(reshape(x, {1, 2}), full({1, 2}, 1, half)),
                            attention(full({1, 1, 1, 1}, kInf, half), full({1, 2, 1, 1}, 1, half), full({1, 2, 1, 1}, 1, half))}) {
      for (const double v : values_of(y)) CHECK(std::isnan(v));
    }
    CHECK(values_of(linear(tensor_of({kInf, 1}, {1, 2}, half), full({1, 2}, 1, half))) == Values{kInf});
  }
}

TEST_CASE("hostile ranges: field case 03 in 16 bits, x = 257 and 70,000 as bf16") {
  for (const auto& [input, expected] : {std::pair{257.0, 256.0}, std::pair{70000.0, 70144.0}}) {
    const Tensor x = full({1, 1}, input, DType::f32), w = leaf({1}, {1, 1}, DType::f32);
    Tensor y;
    {
      const PrecisionScope scope(Precision::bf16_mixed);
      y = checkpoint([&](const Tensor& t) { return linear(t, w); }, x);
    }
    CHECK(values_of(y) == Values{expected});
    CHECK(gradient(w, y, {1}) == Values{expected});
  }
}
