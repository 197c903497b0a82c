// Vector functions against the C library in a wider type.
#include <refrain/core/random.h>
#include <refrain/kernels/common/simd_math.h>
#include <refrain/kernels/common/simd_random.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace refrain;
namespace hn = hwy::HWY_NAMESPACE;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
double ulps(T got, long double expected) {
  if (std::isnan(expected)) return std::isnan(got) ? 0 : 1e9;
  if (got == T(expected)) return 0;
  if (std::isinf(got) || std::isnan(got)) return 1e9;
  // Subnormal results may be flushed: they count against the least normal number.
  const T reference = std::max<T>(std::abs(T(expected)), std::numeric_limits<T>::min());
  const long double unit = std::ldexp(1.0L, std::ilogb(reference) - std::numeric_limits<T>::digits + 1);
  if (std::abs(expected) < std::numeric_limits<T>::min() && std::abs(got) <= std::numeric_limits<T>::min()) return 0;
  return double(std::abs(static_cast<long double>(got) - expected) / unit);
}

// A grid over [lo, hi], values close to zero at all scales, and the special ones.
template <class T>
std::vector<T> arguments(double lo, double hi) {
  std::vector<T> x;
  for (int i = 0; i <= 200000; ++i) x.push_back(T(lo + (hi - lo) * i / 200000));
  for (int e = -30; e < 8; ++e) {
    for (double m : {1.0, 1.1, 1.3, 1.5, 1.7, 1.9}) {
      for (double sign : {-1.0, 1.0}) {
        const double value = sign * std::ldexp(m, e);
        if (value >= lo && value <= hi) x.push_back(T(value));
      }
    }
  }
  return x;
}

template <class T, class F, class R>
void check_accuracy(double lo, double hi, double tolerance, F&& f, R&& reference) {
  const std::vector<T> x = arguments<T>(lo, hi);
  std::vector<T> y(x.size());
  simd::map(x.data(), y.data(), std::int64_t(x.size()), f);
  double worst = 0;
  T where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], reference(static_cast<long double>(x[i])));
    if (error > worst) worst = error, where = x[i];
  }
  INFO("worst at " << where);
  CHECK(worst <= tolerance);
}

template <class T, class F>
T at(double x, F&& f) {
  T in = T(x), out;
  simd::map(&in, &out, 1, f);
  return out;
}

constexpr auto kExp = [](auto d, auto x) { return simd::exp(d, x); };
constexpr auto kExpNonpositive = [](auto d, auto x) { return simd::exp_nonpositive(d, x); };
constexpr auto kLog = [](auto d, auto x) { return simd::log(d, x); };
constexpr auto kTanh = [](auto d, auto x) { return simd::tanh(d, x); };
constexpr auto kSigmoid = [](auto d, auto x) { return simd::sigmoid(d, x); };
constexpr auto kSin = [](auto d, auto x) { return simd::sin(d, x); };
constexpr auto kCos = [](auto d, auto x) { return simd::cos(d, x); };
constexpr auto kErf = [](auto d, auto x) { return simd::erf(d, x); };
constexpr auto kCdf = [](auto d, auto x) { return simd::normal(d, x).cdf; };
constexpr auto kDensity = [](auto d, auto x) { return simd::normal(d, x).density; };

long double normal_cdf(long double x) { return 0.5L * std::erfc(-x * 0.707106781186547524400844362104849039L); }
long double normal_density(long double x) { return std::exp(-x * x / 2) * 0.398942280401432677939946059934381868L; }

}  // namespace

TEMPLATE_TEST_CASE("simd math: functions are accurate to a few units in the last place", "[simd]", float, double) {
  using T = TestType;
  const bool single = sizeof(T) == 4;
  const double range = single ? 88.7 : 709.7;
  check_accuracy<T>(-range - 20, range, single ? 1.1 : 1.5, kExp, [](long double x) { return std::exp(x); });
  check_accuracy<T>(single ? -87.0 : -708.0, 0, single ? 1.1 : 1.5, kExpNonpositive, [](long double x) { return std::exp(x); });
  check_accuracy<T>(1e-6, 1000, 2, kLog, [](long double x) { return std::log(x); });
  check_accuracy<T>(-20, 20, 3, kTanh, [](long double x) { return std::tanh(x); });
  check_accuracy<T>(-range + 5, range, 3, kSigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); });
  check_accuracy<T>(-20, 20, 4, kSin, [](long double x) { return std::sin(x); });
  check_accuracy<T>(-20, 20, 4, kCos, [](long double x) { return std::cos(x); });
  check_accuracy<T>(-7, 7, single ? 2 : 3, kErf, [](long double x) { return std::erf(x); });
  check_accuracy<T>(single ? -13 : -37, single ? 13 : 37, 6, kCdf, normal_cdf);
  check_accuracy<T>(single ? -13 : -37, single ? 13 : 37, 4, kDensity, normal_density);
}

TEMPLATE_TEST_CASE("simd math: infinities, NaN and zero come out as in the C library", "[simd]", float, double) {
  using T = TestType;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(at<T>(kInf, kExp) == T(kInf));
  CHECK(at<T>(-kInf, kExp) == 0);
  CHECK(at<T>(1e30, kExp) == T(kInf));
  CHECK(at<T>(-1e30, kExp) == 0);
  CHECK(at<T>(0, kExp) == 1);
  CHECK(at<T>(-kInf, kExpNonpositive) == 0);
  CHECK(at<T>(0, kExpNonpositive) == 1);
  CHECK(at<T>(0, kLog) == T(-kInf));
  CHECK(at<T>(1, kLog) == 0);
  CHECK(at<T>(kInf, kLog) == T(kInf));
  CHECK(std::isnan(at<T>(-1, kLog)));
  CHECK(at<T>(kInf, kTanh) == 1);
  CHECK(at<T>(-kInf, kTanh) == -1);
  CHECK(at<T>(1e30, kTanh) == 1);
  CHECK(std::signbit(at<T>(-0.0, kTanh)));
  CHECK(at<T>(kInf, kSigmoid) == 1);
  CHECK(at<T>(-kInf, kSigmoid) == 0);
  CHECK(at<T>(0, kSigmoid) == T(0.5));
  CHECK(at<T>(kInf, kErf) == 1);
  CHECK(at<T>(-kInf, kErf) == -1);
  CHECK(at<T>(0, kErf) == 0);
  CHECK(at<T>(kInf, kCdf) == 1);
  CHECK(at<T>(-kInf, kCdf) == 0);
  CHECK(at<T>(-kInf, kDensity) == 0);
  CHECK(at<T>(1e6, kSin) == T(std::sin(T(1e6))));
  CHECK(at<T>(1e9, kCos) == T(std::cos(T(1e9))));
  CHECK(std::isnan(at<T>(kInf, kSin)));
  for (auto value : {at<T>(nan, kExp), at<T>(nan, kExpNonpositive), at<T>(nan, kLog), at<T>(nan, kTanh), at<T>(nan, kSigmoid),
                     at<T>(nan, kSin), at<T>(nan, kCos), at<T>(nan, kErf), at<T>(nan, kCdf), at<T>(nan, kDensity)}) {
    CHECK(std::isnan(value));
  }
}

TEMPLATE_TEST_CASE("simd: partial vectors read and write nothing behind the end", "[simd]", float, double) {
  using T = TestType;
  for (int n = 0; n < 70; ++n) {
    std::vector<T> x(80, T(2)), y(80, T(-7));
    simd::map(x.data() + 1, y.data() + 1, n, [](auto, auto v) { return hn::Add(v, v); });
    CHECK(y[0] == T(-7));
    for (int i = 1; i <= n; ++i) CHECK(y[std::size_t(i)] == T(4));
    for (int i = n + 1; i < 80; ++i) CHECK(y[std::size_t(i)] == T(-7));
    CHECK(simd::sum_of(x.data() + 3, n, [](auto, auto v) { return v; }) == T(2 * n));
  }
}

TEST_CASE("simd random: words equal those of the scalar generator", "[simd]") {
  const RandomKey keys[] = {{}, {0x0123456789abcdefu, 77, 0x00fedcbau, 0xffffu, RandomPurpose::user}};
  for (const RandomKey& key : keys) {
    const simd::RandomWords words(key);
    for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{63}, (std::uint64_t{1} << 34) - 17}) {
      for (int n : {0, 1, 2, 31, 32, 33, 200}) {
        std::vector<std::uint32_t> out(std::size_t(n) + 1, 0xdeadbeefu);
        words.fill(first, out.data(), n);
        bool equal = true;
        for (int i = 0; i < n; ++i) equal = equal && out[std::size_t(i)] == key.word(first + std::uint64_t(i));
        CHECK(equal);
        CHECK(out.back() == 0xdeadbeefu);
      }
    }
  }
}
