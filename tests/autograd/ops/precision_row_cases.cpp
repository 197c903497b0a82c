// Bounds of the ops that normalise rows, to first order in 2^-24 where a comment does not say otherwise (a second order is
// below a thousandth of the first at these sizes and is covered by the roundings that are counted twice).
#include <refrain/autograd/ops/attention.h>
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/precision.h>
#include <refrain/tests/autograd/ops/precision_cases.h>

#include <algorithm>
#include <cmath>

namespace refrain::testing {

namespace {

using Operands = std::vector<Tensor>;
using Values = std::vector<double>;

// The elements of a row (or channel) are `step` apart in runs: rows [outer, length, inner] over the middle.
struct Lines {
  std::size_t outer, length, inner;
  template <class F>
  void each(F&& f) const {
    for (std::size_t o = 0; o < outer; ++o) {
      for (std::size_t i = 0; i < inner; ++i) {
        std::vector<std::size_t> line;
        for (std::size_t j = 0; j < length; ++j) line.push_back((o * length + j) * inner + i);
        f(line);
      }
    }
  }
};

constexpr double kRange = 8;  // of softmax's inputs: largest - smallest

// softmax's y is right to this many roundings: the exponent, a difference of at most kRange, moves by kRange·2^-24 for an
// element and for the sum; 3 for 1.1 ulps of each exponential; n for the sum; 1/sum and the product.
double softmax_roundings(const Lines& l) { return 2 * kRange + double(l.length) + 8; }

HalfCase softmax_case(std::string name, const HalfOperand& x, int dim, const Lines& l) {
  const double n = softmax_roundings(l);
  // Backward reads y·(1 + d): y·(g - Σ g·y) moves by d·y·|g - s| + (1 + d)·y·d·Σ|g·y|.
  const auto backward = [=](const HalfRun& r) {
    Values e(r.g.size());
    const double d = r.u + roundings(n) * (1 + r.u);
    l.each([&](const std::vector<std::size_t>& line) {
      double s = 0, magnitude = 0;
      for (std::size_t i : line) s += r.g[i] * r.exact.y[i], magnitude += std::abs(r.g[i]) * r.exact.y[i];
      for (std::size_t i : line) {
        const double y = r.exact.y[i], g = r.g[i];
        e[i] = d * y * std::abs(g - s) +
               (1 + d) * y * (d * magnitude + roundings(double(line.size()) + 3) * (std::abs(g) + (1 + d) * magnitude));
      }
    });
    return e;
  };
  return {std::move(name), {x}, [dim](const Operands& in) { return softmax(in[0], dim); }, relative(n), {backward}};
}

// (x - max) - log(sum): the sum is right to softmax_roundings, its logarithm to that and 2 ulps of at most log(n); each of
// three differences is rounded.
double log_softmax_error(const Lines& l) { return roundings(softmax_roundings(l)) + roundings(8) * (kRange + std::log(double(l.length))); }

HalfCase log_softmax_case(const HalfOperand& x, int dim, const Lines& l) {
  // Backward reads y + d, d = u·|y| + what y was off: g - exp(y)·S moves by exp(y)·(exp(d) - 1)·|S|.
  const auto backward = [=](const HalfRun& r) {
    Values e(r.g.size());
    l.each([&](const std::vector<std::size_t>& line) {
      double s = 0, magnitude = 0;
      for (std::size_t i : line) s += r.g[i], magnitude += std::abs(r.g[i]);
      for (std::size_t i : line) {
        const double y = r.exact.y[i], d = r.u * std::abs(y) + (1 + r.u) * log_softmax_error(l);
        const double moved = std::exp(y) * std::expm1(d);
        e[i] = moved * std::abs(s) + roundings(double(line.size()) + 5) * (std::abs(r.g[i]) + (std::exp(y) + moved) * magnitude);
      }
    });
    return e;
  };
  return {"log_softmax",
          {x},
          [dim](const Operands& in) { return log_softmax(in[0], dim); },
          [=](const HalfRun& r) { return Values(r.exact.y.size(), log_softmax_error(l)); },
          {backward}};
}

// A mean of log_softmax's errors, in f64 but for the last rounding, which is to f32. Backward (p - q)·scale with p made
// from the logits themselves: nothing that was rounded to 16 bits is read.
HalfCase cross_entropy_case(const Lines& l, double smoothing) {
  const std::vector<std::int64_t> targets{1, 0, 32, -100, 7};
  const auto loss = [=](const HalfRun& r) { return Values(r.exact.y.size(), 2 * log_softmax_error(l)); };
  const auto backward = [=](const HalfRun& r) {
    Values e(r.x[0].size());
    std::size_t row = 0;
    l.each([&](const std::vector<std::size_t>& line) {
      const std::int64_t target = targets[row++];
      double largest = -HUGE_VAL, sum = 0;
      for (std::size_t i : line) largest = std::max(largest, r.x[0][i]);
      for (std::size_t i : line) sum += std::exp(r.x[0][i] - largest);
      for (std::size_t j = 0; j < line.size() && target >= 0; ++j) {
        const double p = std::exp(r.x[0][line[j]] - largest) / sum,
                     q = smoothing / double(line.size()) + (std::int64_t(j) == target ? 1 - smoothing : 0);
        e[line[j]] = std::abs(r.g[0]) / 4 * (p * std::expm1(2 * log_softmax_error(l)) + roundings(8) * (p + q));  // 4 rows count
      }
    });
    return e;
  };
  return {smoothing == 0 ? "cross_entropy" : "cross_entropy: smoothed",
          {{{5, 33}, -4, 4}},
          [=](const Operands& in) { return cross_entropy(in[0], from_values(targets, {5}), {.label_smoothing = smoothing}); },
          loss,
          {backward}};
}

// Statistics of n values, mean first, then the variance of the differences from it. With D the mean |x - mean| and m the
// mean: m is off by roundings(n + 4)·D for the sum of differences, 1 rounding of itself and, to second order, what the first
// mean was off; rstd by n + 8 roundings. xhat = (x - m)·rstd is off by what the mean is off, divided by std, and n + 12
// roundings.
struct Normalised {
  Values xhat, error;  // of xhat
  double rstd;
};

Normalised normalised(const Values& x, const std::vector<std::size_t>& line, double eps) {
  const double n = double(line.size());
  double mean = 0, variance = 0, spread = 0;
  for (std::size_t i : line) mean += x[i] / n;
  for (std::size_t i : line) variance += (x[i] - mean) * (x[i] - mean) / n, spread += std::abs(x[i] - mean) / n;
  Normalised result{{}, {}, 1 / std::sqrt(variance + eps)};
  for (std::size_t i : line) {
    result.xhat.push_back((x[i] - mean) * result.rstd);
    result.error.push_back(result.rstd * (roundings(n + 4) * spread + roundings(2) * std::abs(mean)) +
                           roundings(n + 12) * std::abs(result.xhat.back()));
  }
  return result;
}

// x, weight and bias; parameter_of says which weight an element has.
struct NormBounds {
  Lines lines;
  double eps;
  std::function<std::size_t(std::size_t i)> parameter_of;

  // xhat·w + b
  Values y(const HalfRun& r) const {
    Values e(r.exact.y.size());
    lines.each([&](const std::vector<std::size_t>& line) {
      const Normalised v = normalised(r.x[0], line, eps);
      for (std::size_t j = 0; j < line.size(); ++j) {
        e[line[j]] = std::abs(r.x[1][parameter_of(line[j])]) * v.error[j] * (1 + kWide) + roundings(1) * std::abs(r.exact.y[line[j]]);
      }
    });
    return e;
  }
  // rstd·(g·w - mean(g·w) - xhat·mean(g·w·xhat)): n + 10 roundings of the three terms' magnitudes, and xhat's error where it
  // stands. x and the f32 statistics are read, so no earlier 16-bit rounding comes in.
  Values x(const HalfRun& r) const {
    Values e(r.g.size());
    lines.each([&](const std::vector<std::size_t>& line) {
      const Normalised v = normalised(r.x[0], line, eps);
      const double n = double(line.size());
      double mean_g = 0, mean_gx = 0, mean_error = 0;
      const auto g = [&](std::size_t j) { return std::abs(r.g[line[j]] * r.x[1][parameter_of(line[j])]); };
      for (std::size_t j = 0; j < line.size(); ++j) {
        mean_g += g(j) / n;
        mean_gx += g(j) * std::abs(v.xhat[j]) / n;
        mean_error += g(j) * v.error[j] / n;
      }
      for (std::size_t j = 0; j < line.size(); ++j) {
        const double magnitude = g(j) + mean_g + std::abs(v.xhat[j]) * mean_gx;
        e[line[j]] = v.rstd * (roundings(2 * n + 20) * magnitude + v.error[j] * mean_gx + std::abs(v.xhat[j]) * mean_error);
      }
    });
    return e;
  }
  // Σ g·xhat
  Values weight(const HalfRun& r) const {
    Values e(r.x[1].size());
    const double terms = double(r.g.size() / r.x[1].size());
    lines.each([&](const std::vector<std::size_t>& line) {
      const Normalised v = normalised(r.x[0], line, eps);
      for (std::size_t j = 0; j < line.size(); ++j) {
        e[parameter_of(line[j])] += std::abs(r.g[line[j]]) * (v.error[j] + roundings(terms + 1) * std::abs(v.xhat[j]));
      }
    });
    return e;
  }
  HalfCase named(std::string name, std::vector<HalfOperand> operands, std::function<Tensor(const Operands&)> op) const {
    const NormBounds b = *this;
    const double terms_of_bias = double(numel_of(operands[0].shape) / numel_of(operands[2].shape));
    return {std::move(name),
            std::move(operands),
            std::move(op),
            [b](const HalfRun& r) { return b.y(r); },
            {[b](const HalfRun& r) { return b.x(r); }, [b](const HalfRun& r) { return b.weight(r); }, terms(terms_of_bias)}};
  }
};

// Attention, to first order. scores = scale·q·k: D + 2 roundings of their terms' magnitudes. A probability is off by what
// its score and the row's statistics are off: `probability` below. Backward makes it again from the log-sum-exp.
struct AttentionBounds {
  std::size_t queries, keys, width;  // of one head; operands are [T, D] each
  bool is_causal;

  struct Errors {
    Values y, q, k, v;
  };

  Errors of(const HalfRun& r, const Values& q, const Values& k, const Values& v, const Values& y, std::size_t first, std::size_t step,
            std::size_t out_first, std::size_t out_step) const {
    const auto at = [&](const Values& x, std::size_t row, std::size_t c) { return x[first + row * step + c]; };
    const auto out_at = [&](const Values& x, std::size_t row, std::size_t c) { return x[out_first + row * out_step + c]; };
    const double scale = 1 / std::sqrt(double(width));
    Errors e{Values(queries * width), Values(queries * width), Values(keys * width), Values(keys * width)};
    for (std::size_t i = 0; i < queries; ++i) {
      const std::size_t seen = is_causal ? i + keys - queries + 1 : keys;
      Values score(seen), p(seen);
      double largest = -HUGE_VAL, magnitude = 0, sum = 0, range = 0;
      for (std::size_t j = 0; j < seen; ++j) {
        double m = 0;
        for (std::size_t c = 0; c < width; ++c)
          score[j] += scale * at(q, i, c) * at(k, j, c), m += scale * std::abs(at(q, i, c) * at(k, j, c));
        largest = std::max(largest, score[j]);
        magnitude = std::max(magnitude, m);
      }
      for (double s : score) sum += std::exp(s - largest), range = std::max(range, largest - s);
      for (std::size_t j = 0; j < seen; ++j) p[j] = std::exp(score[j] - largest) / sum;
      // Its own score and the largest; differences, exponentials (3 each), the sum over keys, rescaling and division; in
      // backward the log-sum-exp, a number of the scores' size, is rounded too.
      const double lse = std::abs(largest + std::log(sum));
      const double probability = 2 * roundings(double(width) + 3) * magnitude + roundings(2 * range + 2 * lse + double(seen) + 20);
      double delta_magnitude = 0, delta_error = 0;
      for (std::size_t c = 0; c < width; ++c) {
        double m = 0;
        for (std::size_t j = 0; j < seen; ++j) m += p[j] * std::abs(at(v, j, c));
        e.y[i * width + c] = (probability + roundings(double(seen) + 4)) * m;
        const double g = std::abs(out_at(r.g, i, c)), o = std::abs(out_at(y, i, c));
        delta_magnitude += g * o;
        // Backward reads the output as it was rounded.
        delta_error += g * (r.u * o + (1 + r.u) * e.y[i * width + c]);
      }
      delta_error += roundings(double(width) + 1) * delta_magnitude;
      double delta = 0;
      for (std::size_t c = 0; c < width; ++c) delta += out_at(r.g, i, c) * out_at(y, i, c);
      for (std::size_t j = 0; j < seen; ++j) {
        double dp = 0, m = 0;
        for (std::size_t c = 0; c < width; ++c) dp += out_at(r.g, i, c) * at(v, j, c), m += std::abs(out_at(r.g, i, c) * at(v, j, c));
        const double ds = std::abs(scale * p[j] * (dp - delta));
        const double ds_error =
            (probability + roundings(4)) * ds + (1 + probability) * scale * p[j] * (roundings(double(width) + 1) * m + delta_error);
        for (std::size_t c = 0; c < width; ++c) {
          e.q[i * width + c] += (ds_error + roundings(double(seen) + 2) * ds) * std::abs(at(k, j, c));
          e.k[j * width + c] += (ds_error + roundings(double(queries) + 2) * ds) * std::abs(at(q, i, c));
          e.v[j * width + c] += (probability + roundings(double(queries) + 2)) * p[j] * std::abs(out_at(r.g, i, c));
        }
      }
    }
    return e;
  }
};

HalfCase attention_case(bool is_causal) {
  const AttentionBounds b{7, is_causal ? std::size_t(9) : std::size_t(33), 8, is_causal};
  const auto errors = [b](const HalfRun& r) { return b.of(r, r.x[0], r.x[1], r.x[2], r.exact.y, 0, b.width, 0, b.width); };
  const HalfOperand q{{1, 7, 1, 8}, -2, 2}, k{{1, std::int64_t(b.keys), 1, 8}, -2, 2};
  return {is_causal ? "attention: causal" : "attention",
          {q, k, k},
          [=](const Operands& in) { return attention(in[0], in[1], in[2], {.causal = is_causal}); },
          [=](const HalfRun& r) { return errors(r).y; },
          {[=](const HalfRun& r) { return errors(r).q; }, [=](const HalfRun& r) { return errors(r).k; },
           [=](const HalfRun& r) { return errors(r).v; }}};
}

// Two samples of two heads: [B, T, 3·H·D].
HalfCase packed_attention_case() {
  constexpr std::size_t B = 2, T = 10, H = 2, D = 5;
  const AttentionBounds b{T, T, D, true};
  const auto spread = [b](const HalfRun& r, bool is_gradient) {
    Values all(B * T * H * D * (is_gradient ? 3 : 1));
    for (std::size_t s = 0; s < B; ++s) {
      for (std::size_t h = 0; h < H; ++h) {
        const Values& x = r.x[0];
        // q, k and v lie H·D apart; of() reads each by the same offsets.
        const Values k(x.begin() + H * D, x.end()), v(x.begin() + 2 * H * D, x.end());
        const auto e = b.of(r, x, k, v, r.exact.y, s * T * 3 * H * D + h * D, 3 * H * D, s * T * H * D + h * D, H * D);
        for (std::size_t i = 0; i < T; ++i) {
          for (std::size_t c = 0; c < D; ++c) {
            if (is_gradient) {
              const std::size_t at = (s * T + i) * 3 * H * D + h * D + c;
              all[at] = e.q[i * D + c], all[at + H * D] = e.k[i * D + c], all[at + 2 * H * D] = e.v[i * D + c];
            } else {
              all[(s * T + i) * H * D + h * D + c] = e.y[i * D + c];
            }
          }
        }
      }
    }
    return all;
  };
  return {"attention: packed",
          {{{B, T, 3 * H * D}, -2, 2}},
          [](const Operands& in) { return attention_packed(in[0], H, {.causal = true}); },
          [=](const HalfRun& r) { return spread(r, false); },
          {[=](const HalfRun& r) { return spread(r, true); }}};
}

}  // namespace

std::vector<HalfCase> row_cases() {
  const Lines rows{5, 33, 1}, columns{3, 7, 5};
  std::vector<HalfCase> cases{softmax_case("softmax", {{5, 33}, -4, 4}, 1, rows),
                              softmax_case("softmax: columns", {{3, 7, 5}, -4, 4}, 1, columns), log_softmax_case({{5, 33}, -4, 4}, 1, rows),
                              cross_entropy_case(rows, 0), cross_entropy_case(rows, 0.1)};

  // The mean is 100 times the spread in half of them.
  for (const double mean : {0.0, 100.0}) {
    for (const bool is_mixed : {false, true}) {
      const std::string what = std::string(mean == 0 ? "" : ": large mean") + (is_mixed ? ": f32 weight" : "");
      const auto operands = [&](const Shape& shape, std::int64_t parameters) {
        return std::vector<HalfOperand>{{shape, mean - 1, mean + 2}, {{parameters}, -1, 1, is_mixed}, {{parameters}, -1, 1, is_mixed}};
      };
      const NormBounds layer{{6, 33, 1}, 1e-5, [](std::size_t i) { return i % 33; }};
      cases.push_back(layer.named("layer_norm" + what, operands({2, 3, 33}, 33),
                                  [](const Operands& in) { return layer_norm(in[0], in[1], in[2], 1e-5); }));
      // [N, C] puts a channel's values into a column.
      const NormBounds batch{{1, 40, 5}, 1e-5, [](std::size_t i) { return i % 5; }};
      cases.push_back(batch.named("batch_norm" + what, operands({40, 5}, 5),
                                  [](const Operands& in) { return batch_norm2d(in[0], in[1], in[2], {}, {}); }));
    }
  }
  // f32 in, 16 bits out, f32 parameters.
  for (const Precision mode : {Precision::f16_mixed, Precision::bf16_mixed}) {
    const auto in_mode = [mode](auto op) {
      return [=](const Operands& in) {
        const PrecisionScope scope(mode);
        return op(in);
      };
    };
    const std::vector<HalfOperand> layer_operands{{{6, 33}, -1, 2, true}, {{33}, -1, 1, true}, {{33}, -1, 1, true}};
    const std::vector<HalfOperand> batch_operands{{{40, 5}, -1, 2, true}, {{5}, -1, 1, true}, {{5}, -1, 1, true}};
    const std::string in_words = ": " + std::string(name_of(mode));
    cases.push_back(NormBounds{{6, 33, 1}, 1e-5, [](std::size_t i) { return i % 33; }}.named(
        "layer_norm" + in_words, layer_operands, in_mode([](const Operands& in) { return layer_norm(in[0], in[1], in[2], 1e-5); })));
    cases.push_back(NormBounds{{1, 40, 5}, 1e-5, [](std::size_t i) { return i % 5; }}.named(
        "batch_norm" + in_words, batch_operands, in_mode([](const Operands& in) { return batch_norm2d(in[0], in[1], in[2], {}, {}); })));
  }
  cases.push_back(attention_case(false));
  cases.push_back(attention_case(true));
  cases.push_back(packed_attention_case());
  return cases;
}

}  // namespace refrain::testing
