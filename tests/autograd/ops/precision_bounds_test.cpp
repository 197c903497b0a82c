// Every differentiable op in f16 and bf16 against f64, within bounds derived from its arithmetic; docs/numerics.md has the
// table. The comments say where each bound's E comes from (tests/support/half_bounds.h): u is the 16-bit rounding unit, and
// "n roundings" are n operations in f32. Functions are counted by the ulps that tests/kernels/common/simd_math_test.cpp
// allows them, an ulp being at most two roundings. The norms, softmax and its kin, and attention are in
// precision_row_cases.cpp.
#include <refrain/autograd/all.h>
#include <refrain/tests/autograd/ops/precision_cases.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <set>

using namespace refrain;
using namespace refrain::testing;

namespace {

using Operands = std::vector<Tensor>;

const HalfOperand kX{{3, 31}}, kPositive{{3, 31}, 0.25, 3}, kWideX{{3, 31}, -4, 4};

HalfCase unary(std::string name, Tensor (*op)(const Tensor&), const HalfOperand& x, HalfBound y, HalfBound grad) {
  return {std::move(name), {x}, [op](const Operands& in) { return op(in[0]); }, std::move(y), {std::move(grad)}};
}

// E = roundings(n)·|g|·f(x): a derivative whose terms have magnitudes that add up to f.
HalfBound derivative(double (*n)(double x), double (*f)(double x)) {
  return [n, f](const HalfRun& r) {
    std::vector<double> e(r.g.size());
    for (std::size_t i = 0; i < e.size(); ++i) e[i] = roundings(n(r.x[0][i])) * std::abs(r.g[i]) * f(r.x[0][i]);
    return e;
  };
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
constexpr double kGelu = 2 * 0.79788456080286535588;
double gelu_argument(double x) { return kGelu * (x + 0.044715 * x * x * x); }

std::vector<HalfCase> arithmetic() {
  std::vector<HalfCase> cases;
  // One operation, one rounding to f32. Of the gradients, b's is a sum over what was broadcast; its terms stay f32.
  const std::vector<HalfOperand> pair{{{3, 31}}, {{31}, 0.5, 2}};
  for (const auto& [mix, operands] : {std::pair{"", pair},
                                      {": f32 and 16-bit", {{{3, 31}, -1, 1, true}, pair[1]}},
                                      {": 16-bit and f32", {pair[0], {{31}, 0.5, 2, true}}}}) {
    const auto named = [mix = std::string(mix)](const char* op) { return op + mix; };
    cases.push_back({named("add"), operands, [](const Operands& in) { return in[0] + in[1]; }, relative(1), {exactly(), terms(2)}});
    cases.push_back({named("sub"), operands, [](const Operands& in) { return in[0] - in[1]; }, relative(1), {exactly(), terms(2)}});
    cases.push_back(
        {named("mul"), operands, [](const Operands& in) { return in[0] * in[1]; }, relative(1), {relative(1), terms(3)}});
    // (g/b)·(a/b): three roundings a term.
    cases.push_back(
        {named("div"), operands, [](const Operands& in) { return in[0] / in[1]; }, relative(1), {relative(1), terms(5)}});
  }
  cases.push_back({"add: scalar", {kX}, [](const Operands& in) { return in[0] + 0.3; }, terms(2), {exactly()}});
  cases.push_back({"sub: from scalar", {kX}, [](const Operands& in) { return 0.5 - in[0]; }, relative(1), {exactly()}});
  // The scalar is rounded to f32 once.
  cases.push_back({"mul: scalar", {kX}, [](const Operands& in) { return in[0] * 0.3; }, relative(2), {relative(2)}});
  cases.push_back({"div: scalar", {kX}, [](const Operands& in) { return in[0] / 0.3; }, relative(2), {relative(2)}});
  cases.push_back({"div: scalar by tensor", {kPositive}, [](const Operands& in) { return 0.3 / in[0]; }, relative(2), {relative(4)}});
  // pow() of the C library to an ulp; backward g·(x^(p-1)·p).
  cases.push_back({"pow", {kPositive}, [](const Operands& in) { return pow(in[0], 2.5); }, relative(2), {relative(4)}});
  cases.push_back({"pow: square", {kX}, [](const Operands& in) { return pow(in[0], 2); }, relative(1), {relative(3)}});
  cases.push_back({"where",
                   {kX, {{31}}},
                   [](const Operands& in) {
                     std::vector<std::uint8_t> bytes;
                     for (int i = 0; i < 3 * 31; ++i) bytes.push_back(i % 3 == 0);
                     return where(convert(from_values(bytes, {3, 31}), DType::boolean), in[0], in[1]);
                   },
                   exactly(),
                   {exactly(), terms(2)}});
  return cases;
}

std::vector<HalfCase> functions() {
  const auto always = [](double n) { return HalfBound(relative(n)); };
  const auto no_more = [](double) { return 18.0; };
  const auto gelu_tanh = [](const Operands& in) { return gelu(in[0], GeluForm::tanh); };
  // sigmoid's argument is right to 5 roundings, which it turns into |z|·5; 6 for its own 3 ulps and 2 products.
  const auto gelu_roundings = [](double x) { return 5 * std::abs(gelu_argument(x)) + 14; };
  return {
      unary("neg", neg, kX, exactly(), exactly()),
      unary("abs", abs, kX, exactly(), exactly()),
      unary("square", square, kX, relative(1), relative(1)),
      unary("log", log, kPositive, always(4), relative(1)),  // 2 ulps; g/x
      unary("sin", sin, kWideX, always(8), always(9)),       // 4 ulps
      unary("cos", cos, kWideX, always(8), always(9)),
      unary("exp", exp, kWideX, always(3), of_saved_output(1, 5)),                     // 1.1 ulps; g·y
      unary("sqrt", sqrt, kPositive, relative(1), of_saved_output(1, 3)),              // g/2y
      unary("rsqrt", rsqrt, kPositive, relative(2), of_saved_output(3, 10)),           // -g/2·y³
      unary("reciprocal", reciprocal, kPositive, relative(1), of_saved_output(2, 5)),  // -g·y²
      unary("relu", relu, kX, exactly(), exactly()),
      // 3 ulps. Backward reads y·(1 + d), |d| <= u + 6·2^-24: of g·(1 - y²) the second term moves by (2d + d²)·y².
      unary("tanh", tanh, kWideX, always(6),
            [](const HalfRun& r) {
              std::vector<double> e(r.g.size());
              for (std::size_t i = 0; i < e.size(); ++i) {
                const double d = r.u + roundings(6) * (1 + r.u), y = r.exact.y[i], moved = std::abs(r.g[i]) * (2 * d + d * d) * y * y;
                e[i] = moved + roundings(3) * (std::abs(r.exact.grads[0][i]) + moved);
              }
              return e;
            }),
      // 3 ulps. g·y·(1 - y) moves by |1 - 2y|·y·d + (y·d)².
      unary("sigmoid", sigmoid, kWideX, always(6),
            [](const HalfRun& r) {
              std::vector<double> e(r.g.size());
              for (std::size_t i = 0; i < e.size(); ++i) {
                const double d = r.u + roundings(6) * (1 + r.u), y = r.exact.y[i];
                const double moved = std::abs(r.g[i]) * (std::abs(1 - 2 * y) * y * d + y * y * d * d);
                e[i] = moved + roundings(4) * (std::abs(r.exact.grads[0][i]) + moved);
              }
              return e;
            }),
      // x·sigmoid(x); backward s + x·s·(1 - s), where 1 - s is off by what s is off.
      unary("silu", silu, kWideX, always(7), derivative(no_more, [](double x) { return logistic(x) * (1 + std::abs(x)); })),
      // x·Φ(x), Φ to 6 ulps in the tail too; backward Φ(x) + x·φ(x).
      {"gelu",
       {kWideX},
       [](const Operands& in) { return gelu(in[0]); },
       always(13),
       {derivative(
           no_more,
           [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)) + std::abs(x) * 0.3989422804014327 * std::exp(-x * x / 2); })}},
      {"gelu: tanh",
       {kWideX},
       gelu_tanh,
       [=](const HalfRun& r) {
         std::vector<double> e(r.exact.y.size());
         for (std::size_t i = 0; i < e.size(); ++i) e[i] = roundings(gelu_roundings(r.x[0][i])) * std::abs(r.exact.y[i]);
         return e;
       },
       {derivative(gelu_roundings,
                   [](double x) { return logistic(gelu_argument(x)) * (1 + std::abs(x) * kGelu * (1 + 3 * 0.044715 * x * x)); })}},
  };
}

// Sums of n products in f32: roundings(n) of the sum of magnitudes, in whatever order.
std::vector<HalfCase> sums_and_products() {
  const auto targets = [] { return from_values(std::vector<std::int64_t>{3, 0, 3, 6, 3, 3, 1}, {7}); };
  const auto with_bias = [](auto op) { return [op](const Operands& in) { return op(in[0], in[1], in[2]); }; };
  const auto linear_op = with_bias([](auto&... in) { return linear(in...); });
  const auto conv = with_bias([](const Tensor& x, const Tensor& w, const Tensor& b) { return conv2d(x, w, b, 2, 1); });
  const auto patches = with_bias([](auto&... in) { return patch_embedding(in...); });
  return {
      {"sum", {{{4, 33, 5}}}, [](const Operands& in) { return sum(in[0], {1}); }, terms(33), {exactly()}},
      {"sum: all", {{{1000}}}, [](const Operands& in) { return sum(in[0]); }, terms(1000), {exactly()}},
      {"mean",
       {{{4, 33, 5}}},
       [](const Operands& in) {
         return mean(in[0], {0, 2});
       },
       terms(22),
       {relative(2)}},
      {"max", {{{4, 33, 5}}}, [](const Operands& in) { return max(in[0], 1).values; }, exactly(), {exactly()}},
      // Row 3 is looked up 4 times.
      {"embedding", {{{7, 20}}}, [=](const Operands& in) { return embedding(targets(), in[0]); }, exactly(), {terms(3)}},
      {"dropout", {kX}, [](const Operands& in) { return dropout(in[0], 0.3); }, relative(2), {relative(2)}},
      {"stochastic_depth", {{{9, 31}}}, [](const Operands& in) { return stochastic_depth(in[0], 0.3); }, relative(2), {relative(2)}},
      {"dropout_add", {kX, kX}, [](const Operands& in) { return dropout_add(in[0], in[1], 0.3); }, terms(3), {relative(2), exactly()}},
      {"dropout_add: f32 residual",
       {kX, {{3, 31}, -1, 1, true}},
       [](const Operands& in) { return dropout_add(in[0], in[1], 0.3); },
       terms(3),
       {relative(2), exactly()}},
      {"matmul", {{{2, 9, 33}}, {{33, 5}}}, [](const Operands& in) { return matmul(in[0], in[1]); }, terms(33), {terms(5), terms(18)}},
      {"linear", {{{2, 9, 33}}, {{5, 33}}, {{5}}}, linear_op, terms(34), {terms(5), terms(18), terms(18)}},
      // The weight is rounded to 16 bits for the products, its gradient is f32.
      {"linear: f32 weight",
       {{{2, 9, 33}}, {{5, 33}, -1, 1, true}, {{5}, -1, 1, true}},
       linear_op,
       terms_rounded(34),
       {terms_rounded(5), terms(18), terms(18)}},
      // 3·3 windows of 4 channels; 2·5·4 places.
      {"conv2d", {{{2, 4, 9, 7}}, {{6, 4, 3, 3}}, {{6}}}, conv, terms(37), {terms(54), terms(40), terms(40)}},
      {"conv2d: f32 weight",
       {{{2, 4, 9, 7}}, {{6, 4, 3, 3}, -1, 1, true}, {{6}, -1, 1, true}},
       conv,
       terms_rounded(37),
       {terms_rounded(54), terms(40), terms(40)}},
      {"patch_embedding", {{{2, 3, 8, 8}}, {{10, 3, 4, 4}}, {{10}}}, patches, terms(49), {terms(10), terms(8), terms(8)}},
      // Pixels are rounded to 16 bits as patches are gathered.
      {"patch_embedding: f32 images",
       {{{2, 3, 8, 8}, -1, 1, true}, {{10, 3, 4, 4}}, {{10}}},
       patches,
       terms_rounded(49),
       {terms(10), terms_rounded(8), terms(8)}},
      // Differences to one rounding, squares of one sign; the loss is f32.
      {"mse_loss", {kX, kX}, [](const Operands& in) { return mse_loss(in[0], in[1]); }, relative(93 + 4), {relative(4), relative(4)}},
  };
}

// The f64 runs stay in f64.
Tensor converted(const Tensor& t, DType dtype) { return convert(t, t.dtype() == DType::f64 ? DType::f64 : dtype) * 1; }

std::vector<HalfCase> moves() {
  const auto strided = [](auto f) { return [f](const Operands& in) { return f(in[0]); }; };
  const HalfOperand x{{4, 6, 5}};
  return {
      {"slice", {x}, strided([](const Tensor& t) { return slice(t, 1, 1, 6, 2); }), exactly(), {exactly()}},
      {"select", {x}, strided([](const Tensor& t) { return select(t, 1, 3); }), exactly(), {exactly()}},
      {"transpose", {x}, strided([](const Tensor& t) { return transpose(t, 0, 2); }), exactly(), {exactly()}},
      {"permute",
       {x},
       strided([](const Tensor& t) {
         return permute(t, {2, 0, 1});
       }),
       exactly(),
       {exactly()}},
      {"reshape",
       {x},
       strided([](const Tensor& t) {
         return reshape(t, {6, -1});
       }),
       exactly(),
       {exactly()}},
      {"contiguous", {x}, strided([](const Tensor& t) { return contiguous(transpose(t, 0, 1)); }), exactly(), {exactly()}},
      {"expand",
       {{{4, 1, 5}}},
       strided([](const Tensor& t) {
         return expand(t, {4, 6, 5});
       }),
       exactly(),
       {terms(5)}},
      {"concat",
       {x, {{4, 2, 5}}},
       [](const Operands& in) {
         return concat({in[0], in[1]}, 1);
       },
       exactly(),
       {exactly(), exactly()}},
      {"convert: to f32", {x}, strided([](const Tensor& t) { return converted(t, DType::f32); }), exactly(), {exactly()}},
      {"convert: to bf16",
       {{{93}, -1, 1, true}},
       strided([](const Tensor& t) { return converted(t, DType::bf16); }),
       exactly(),
       {exactly()}},
      {"convert: to f16", {{{93}, -1, 1, true}}, strided([](const Tensor& t) { return converted(t, DType::f16); }), exactly(), {exactly()}},
  };
}

void check_all(const std::vector<HalfCase>& cases) {
  for (const HalfCase& c : cases) {
    for (const DType half : {DType::f16, DType::bf16}) {
      DYNAMIC_SECTION(c.name << " " << half) {
        const std::vector<double> shares = shares_of_bounds(c, half);
        for (std::size_t k = 0; k < shares.size(); ++k) {
          INFO((k == 0 ? "output" : "gradient of operand ") << (k == 0 ? "" : std::to_string(k - 1)));
          CHECK(shares[k] <= 1);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("precision bounds: arithmetic, functions, sums, products and moves in 16 bits") {
  check_all(arithmetic());
  check_all(functions());
  check_all(sums_and_products());
  check_all(moves());
}

TEST_CASE("precision bounds: softmax, losses, norms and attention in 16 bits") {
  check_all(row_cases());
  check_all(loss_cases());
  check_all(mlp_cases());
}

TEST_CASE("precision bounds: every op of the precision table is checked") {
  std::set<std::string> checked;
  for (const auto& cases : {arithmetic(), functions(), sums_and_products(), moves(), row_cases(), loss_cases(), mlp_cases()}) {
    for (const HalfCase& c : cases) checked.insert(c.name.substr(0, c.name.find(':')));
  }
  for (const OpRule& rule : precision_table()) {
    INFO(rule.op);
    CHECK(checked.count(std::string(rule.op)) == 1);
  }
}

TEST_CASE("precision bounds: sums in 16 bits and a second rounding break them") {
  const HalfOperand rows{{40, 8}};
  const auto added_up = [](const Operands& in) {
    Tensor total = select(in[0], 0, 0);
    for (std::int64_t i = 1; i < 40; ++i) total = total + select(in[0], 0, i);
    return total;
  };
  const auto through_exp = [](const Operands& in) { return log(exp(in[0])); };
  for (const DType half : {DType::f16, DType::bf16}) {
    CHECK(shares_of_bounds({"sum", {rows}, added_up, terms(40), {exactly()}}, half)[0] > 1);
    CHECK(shares_of_bounds({"exp", {rows}, through_exp, relative(20), {relative(20)}}, half)[0] > 1);
  }
}
