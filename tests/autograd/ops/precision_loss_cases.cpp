// Bounds of linear_cross_entropy: a linear layer, whose logits are rounded, a cross-entropy of them, and the linear layer's
// backward of a gradient that is rounded too.
#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/tests/autograd/ops/precision_cases.h>

#include <algorithm>
#include <cmath>

namespace refrain::testing {

namespace {

using Values = std::vector<double>;

struct Sizes {
  std::size_t rows, classes, width;
  std::int64_t chunk;
};

// What the steps between the operands and a result are off.
struct Errors {
  double loss = 0;
  Values grads[3];
};

Errors errors(const HalfRun& r, const Sizes& s, const std::vector<std::int64_t>& targets, bool has_wide_weight) {
  const Values &x = r.x[0], &w = r.x[1], &b = r.x[2];
  const double counted = double(std::count_if(targets.begin(), targets.end(), [](std::int64_t t) { return t >= 0; }));
  const double rounded_weight = has_wide_weight ? r.u : 0;
  Errors e{0, {Values(x.size()), Values(w.size()), Values(b.size())}};
  for (std::size_t i = 0; i < s.rows; ++i) {
    if (targets[i] < 0) continue;
    Values z(s.classes), p(s.classes);
    double largest = -HUGE_VAL, sum = 0, off = 0, smallest = HUGE_VAL;
    for (std::size_t v = 0; v < s.classes; ++v) {
      double magnitude = std::abs(b[v]), products = 0;
      z[v] = b[v];
      for (std::size_t c = 0; c < s.width; ++c) {
        z[v] += x[i * s.width + c] * w[v * s.width + c];
        products += std::abs(x[i * s.width + c] * w[v * s.width + c]);
      }
      magnitude += products;
      // A logit: an f32 weight is rounded for the products, sums of width + 1 terms, one rounding to 16 bits.
      const double before = rounded_weight * products + roundings(double(s.width) + 2) * (1 + rounded_weight) * magnitude;
      off = std::max(off, before + r.u * (std::abs(z[v]) + before));
      largest = std::max(largest, z[v]);
      smallest = std::min(smallest, z[v]);
    }
    for (const double value : z) sum += std::exp(value - largest);
    // The log-sum-exp moves by at most what the farthest logit does; then log_softmax's own error.
    const double range = largest - smallest + 2 * off;
    const double soft = roundings(2 * range + double(s.classes) + 8) + roundings(8) * (range + std::log(double(s.classes)));
    e.loss += (2 * off + 2 * soft) / counted;
    for (std::size_t v = 0; v < s.classes; ++v) {
      const double q = std::int64_t(v) == targets[i] ? 1 : 0, scale = std::abs(r.g[0]) / counted;
      p[v] = std::exp(z[v] - largest) / sum;
      // The logit's gradient, in f32, and rounded to 16 bits.
      const double moved = scale * (p[v] * std::expm1(2 * off + 2 * soft) + roundings(8) * (p[v] + q)), exact = scale * std::abs(p[v] - q);
      const double g = moved + r.u * (exact + moved) + (r.u > 0x1p-10 ? 0x1p-126 : 0x1p-25), magnitude = exact + g;
      // Sums of products with it: over classes, over rows and chunks, over rows and chunks.
      for (std::size_t c = 0; c < s.width; ++c) {
        const double weight = std::abs(w[v * s.width + c]), hidden = std::abs(x[i * s.width + c]);
        e.grads[0][i * s.width + c] +=
            g * weight + (rounded_weight + roundings(double(s.classes) + 2)) * (1 + rounded_weight) * magnitude * weight;
        e.grads[1][v * s.width + c] += (g + roundings(double(s.rows) + 2) * magnitude) * hidden;
      }
      e.grads[2][v] += g + roundings(double(s.rows) + 2) * magnitude;
    }
  }
  return e;
}

HalfCase loss_case(std::string name, const Sizes& s, bool has_wide_weight) {
  std::vector<std::int64_t> targets;
  for (std::size_t i = 0; i < s.rows; ++i) targets.push_back(i % 5 == 3 ? -100 : std::int64_t(i * 7 % s.classes));
  const auto part = [=](int k) { return HalfBound([=](const HalfRun& r) { return errors(r, s, targets, has_wide_weight).grads[k]; }); };
  const std::int64_t rows = std::int64_t(s.rows), classes = std::int64_t(s.classes), width = std::int64_t(s.width);
  return {std::move(name),
          {{{rows, width}}, {{classes, width}, -1, 1, has_wide_weight}, {{classes}, -1, 1, has_wide_weight}},
          [=](const std::vector<Tensor>& in) {
            return linear_cross_entropy(in[0], in[1], in[2], from_values(targets, {rows}), {}, s.chunk).loss;
          },
          [=](const HalfRun& r) { return Values{errors(r, s, targets, has_wide_weight).loss}; },
          {part(0), part(1), part(2)}};
}

}  // namespace

std::vector<HalfCase> loss_cases() {
  return {loss_case("linear_cross_entropy", {9, 33, 20, 4}, false), loss_case("linear_cross_entropy: one chunk", {9, 33, 20, 0}, false),
          loss_case("linear_cross_entropy: f32 weight", {9, 33, 20, 4}, true)};
}

}  // namespace refrain::testing
