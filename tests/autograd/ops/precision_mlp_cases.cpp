// Bounds of mlp: two linear layers with GELU between them, each of whose results is rounded to 16 bits.
#include <refrain/autograd/ops/mlp.h>
#include <refrain/tests/autograd/ops/precision_cases.h>

#include <cmath>

namespace refrain::testing {

namespace {

using Values = std::vector<double>;

struct Sizes {
  std::size_t rows, in, hidden, out;
  std::int64_t chunk;
};

struct Errors {
  Values y, grads[5];
};

// GELU's slope is below 1.13, its terms Φ(z) + |z|·φ(z) below 1.25, its slope's slope (2 - z²)·φ(z) below 0.8.
constexpr double kSlope = 1.13, kSlopeTerms = 1.25, kCurve = 0.8;

double phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }
double slope(double z) { return phi(z) + z * 0.3989422804014327 * std::exp(-z * z / 2); }

Errors errors(const HalfRun& r, const Sizes& s, bool has_wide_weights) {
  const Values &x = r.x[0], &w1 = r.x[1], &b1 = r.x[2], &w2 = r.x[3], &b2 = r.x[4];
  const double rw = has_wide_weights ? r.u : 0;  // weights are rounded for the products
  const double tiny = r.u > 0x1p-10 ? 0x1p-126 : 0x1p-25;
  const auto stored = [&](double value, double off) { return off + r.u * (std::abs(value) + off) + tiny; };
  // A sum of n products with a weight: what the other factor is off, and the weight, and the sum.
  const auto term = [&](double n, double weight, double value, double off) {
    return std::abs(weight) * ((1 + rw) * off + (rw + roundings(n + 2) * (1 + rw)) * (std::abs(value) + off));
  };
  const auto own_term = [](double n, double factor, double value, double off) {
    return std::abs(factor) * (off + roundings(n + 2) * (std::abs(value) + off));
  };
  const double rows = double(s.rows);
  Errors e{Values(s.rows * s.out), {Values(x.size()), Values(w1.size()), Values(b1.size()), Values(w2.size()), Values(b2.size())}};
  for (std::size_t i = 0; i < s.rows; ++i) {
    const double *xi = &x[i * s.in], *g = &r.g[i * s.out];
    for (std::size_t o = 0; o < s.out; ++o) {
      e.y[i * s.out + o] += roundings(double(s.hidden) + 2) * std::abs(b2[o]);
      e.grads[4][o] += roundings(rows + 2) * std::abs(g[o]);
    }
    for (std::size_t h = 0; h < s.hidden; ++h) {
      double z = b1[h], z_off = roundings(double(s.in) + 2) * std::abs(b1[h]), ga = 0, ga_off = 0;
      for (std::size_t c = 0; c < s.in; ++c) z += xi[c] * w1[h * s.in + c], z_off += term(double(s.in), w1[h * s.in + c], xi[c], 0);
      z_off = stored(z, z_off);
      const double a = z * phi(z), a_off = stored(a, kSlope * z_off + roundings(13) * (std::abs(a) + kSlope * z_off));
      for (std::size_t o = 0; o < s.out; ++o) {
        const std::size_t at = o * s.hidden + h;
        e.y[i * s.out + o] += term(double(s.hidden), w2[at], a, a_off);
        e.grads[3][at] += own_term(rows, g[o], a, a_off);
        ga += g[o] * w2[at];
        ga_off += term(double(s.out), w2[at], g[o], 0);
      }
      ga_off = stored(ga, ga_off);
      const double gh = ga * slope(z), most = std::abs(ga) + ga_off;
      const double gh_off = stored(gh, kSlope * ga_off + kCurve * most * z_off + roundings(18) * kSlopeTerms * most);
      e.grads[2][h] += own_term(rows, 1, gh, gh_off);
      for (std::size_t c = 0; c < s.in; ++c) {
        e.grads[0][i * s.in + c] += term(double(s.hidden), w1[h * s.in + c], gh, gh_off);
        e.grads[1][h * s.in + c] += own_term(rows, xi[c], gh, gh_off);
      }
    }
  }
  return e;
}

HalfCase mlp_case(std::string name, const Sizes& s, bool has_wide_weights) {
  const std::int64_t in = std::int64_t(s.in), hidden = std::int64_t(s.hidden), out = std::int64_t(s.out);
  std::vector<HalfBound> grads;
  for (int k = 0; k < 5; ++k) grads.push_back([=](const HalfRun& r) { return errors(r, s, has_wide_weights).grads[k]; });
  return {std::move(name),
          {{{std::int64_t(s.rows), in}, -2, 2},
           {{hidden, in}, -1, 1, has_wide_weights},
           {{hidden}, -1, 1, has_wide_weights},
           {{out, hidden}, -1, 1, has_wide_weights},
           {{out}, -1, 1, has_wide_weights}},
          [=](const std::vector<Tensor>& t) { return chunked_mlp(t[0], t[1], t[2], t[3], t[4], {.chunk_rows = s.chunk}); },
          [=](const HalfRun& r) { return errors(r, s, has_wide_weights).y; },
          std::move(grads)};
}

}  // namespace

std::vector<HalfCase> mlp_cases() {
  return {mlp_case("mlp", {9, 6, 33, 5, 4}, false), mlp_case("mlp: one chunk", {9, 6, 33, 5, 0}, false),
          mlp_case("mlp: f32 weights", {9, 6, 33, 5, 4}, true)};
}

}  // namespace refrain::testing
