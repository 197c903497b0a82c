#include <refrain/nn/init.h>

#include <refrain/core/parallel.h>
#include <refrain/core/view.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace refrain {

namespace {

double horner(double x, const double (&c)[8]) {
  double sum = c[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Strictly inside (0, 1).
double open_uniform(std::uint32_t word) { return (double(word) + 0.5) * 0x1p-32; }

// Sets element `first` + i of a tensor to f(its word of the stream), for the `count` of them at `data`.
template <class T, class F>
void fill_part(T* data, std::int64_t first, std::int64_t count, const RandomKey& key, const F& f) {
  parallel_for((count + 3) / 4, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const auto words = key.block(std::uint64_t(first / 4 + block));
      for (std::int64_t i = 0; i < 4 && 4 * block + i < count; ++i) {
        const double value = f(words[std::size_t(i)]);
        if constexpr (sizeof(T) == 2) data[4 * block + i] = T(float(value));
        else data[4 * block + i] = T(value);
      }
    }
  });
}

// The numbers are the host's for every device: made there part by part where the tensor is elsewhere.
template <class F>
void fill_elements(const Tensor& t, const RandomKey& key, F&& f) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;  // a multiple of a block of words
  dispatch_all(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T> || sizeof(T) == 2) {
      if (t.is_on_host()) return fill_part(reinterpret_cast<T*>(t.address()), 0, t.numel(), key, f);
      const Tensor flat = view::reshape(t, {t.numel()});
      std::vector<T> part(std::size_t(std::min(kPart, t.numel())));
      for (std::int64_t at = 0; at < t.numel(); at += kPart) {
        const std::int64_t count = std::min(kPart, t.numel() - at);
        fill_part(part.data(), at, count, key, f);
        set_bytes(view::slice(flat, 0, at, at + count), std::as_bytes(std::span(part.data(), std::size_t(count))));
      }
    }
  });
}

}  // namespace

Fans fans_of(const Shape& weight) {
  check(weight.size() >= 2, "fans_of: expected a weight with at least 2 dims, got ", weight);
  double window = 1;
  for (int i = 2; i < weight.size(); ++i) window *= double(weight[i]);
  return {double(weight[1]) * window, double(weight[0]) * window};
}

double normal_quantile(double p) {
  check(p > 0 && p < 1, "normal_quantile: expected a probability in (0, 1), got ", p);
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q *
           horner(r, {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
                      4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3}) /
           horner(r, {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
                      3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3});
  }
  double r = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  double x = 0;
  if (r <= 5) {
    r -= 1.6;
    x = horner(r, {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
                   1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4}) /
        horner(r, {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
                   1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9});
  } else {
    r -= 5;
    x = horner(r, {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
                   2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7}) /
        horner(r, {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
                   1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15});
  }
  return q < 0 ? -x : x;
}

Init Init::resolved(const Shape& shape) const {
  switch (kind_) {
    case Kind::xavier_uniform: case Kind::xavier_normal: {
      const Fans fans = fans_of(shape);
      const double std = a_ * std::sqrt(2 / (fans.in + fans.out));
      return kind_ == Kind::xavier_normal ? normal(0, std) : uniform(-std * std::sqrt(3.0), std * std::sqrt(3.0));
    }
    case Kind::kaiming_uniform: case Kind::kaiming_normal: {
      const double std = std::sqrt(2 / (1 + a_ * a_)) / std::sqrt(fans_of(shape).in);
      return kind_ == Kind::kaiming_normal ? normal(0, std) : uniform(-std * std::sqrt(3.0), std * std::sqrt(3.0));
    }
    default: return *this;
  }
}

void Init::fill(const Tensor& t, const RandomKey& key) const {
  check(is_floating(t.dtype()), "init: expected a floating dtype, got ", t.dtype());
  check(t.is_contiguous(), "init: expected a contiguous tensor, got shape ", t.shape(), " with strides ", t.strides());
  if (t.numel() == 0) return;
  const Init init = resolved(t.shape());
  const double a = init.a_, b = init.b_;
  check(init.kind_ == Kind::constant || b >= (init.kind_ == Kind::uniform ? a : 0), "init: expected low <= high and std >= 0, got ", a,
        ", ", b);
  if (init.kind_ == Kind::constant) return fill_values(t, a);
  if (t.storage()) t.storage()->bump_version();
  if (!t.has_bytes()) return;
  switch (init.kind_) {
    case Kind::uniform:
      return fill_elements(t, key, [=](std::uint32_t word) { return a + (b - a) * (double(word) * 0x1p-32); });
    case Kind::normal:
      return fill_elements(t, key, [=](std::uint32_t word) { return a + b * normal_quantile(open_uniform(word)); });
    default: {
      const double low = init.low_, high = init.high_;
      check(low < high && b > 0, "init: trunc_normal expects std > 0 and low < high, got std ", b, ", [", low, ", ", high, "]");
      const double p_low = normal_cdf((low - a) / b), p_high = normal_cdf((high - a) / b);
      check(p_low < p_high, "init: trunc_normal to [", low, ", ", high, "] leaves nothing of mean ", a, ", std ", b);
      return fill_elements(t, key, [=](std::uint32_t word) {
        const double p = p_low + (p_high - p_low) * open_uniform(word);
        return std::min(std::max(p >= 1 ? high : a + b * normal_quantile(p), low), high);
      });
    }
  }
}

}  // namespace refrain
