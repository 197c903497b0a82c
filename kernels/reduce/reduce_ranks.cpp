// Validation, cost and the CPU's half of ReduceRanks.
#include <refrain/core/parallel.h>
#include <refrain/kernels/reduce/reduce_ranks.h>

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

namespace refrain {

void validate(const ReduceRanks& k) {
  const DType dtype = k.out.dtype();
  for (const In* in : {&k.own, &k.others}) check_dtype(k.name, in == &k.own ? "own" : "others", *in, dtype);
  check(k.out.num_dims() == 1, k.name, ": out must have one dim, got ", k.out.shape());
  check_contiguous(k.name, "out", k.out);
  check_shape(k.name, "own", k.own, k.out.shape());
  check_contiguous(k.name, "own", k.own);
  check(k.others.num_dims() == 2 && k.others.dim(1) == k.out.dim(0), k.name, ": others must be [ranks - 1, ", k.out.dim(0), "], got ",
        k.others.shape());
  check(k.others.strides()[1] == 1 || k.others.dim(1) <= 1, k.name, ": rows of others must be contiguous");
  check(k.rank >= 0 && k.rank <= k.others.dim(0), k.name, ": rank ", k.rank, " of ", k.others.dim(0) + 1);
  check(k.op != ReduceOp::mean || is_floating(dtype), k.name, ": a mean is for floating dtypes, got ", dtype);
  check(k.op == ReduceOp::max || dtype != DType::boolean, k.name, ": bool has a max only");
}

Cost cost(const ReduceRanks& k) {
  const double flops = double(k.others.numel()) + (k.op == ReduceOp::mean ? double(k.out.numel()) : 0);
  return {flops, k.own.bytes() + k.others.bytes() + k.out.bytes()};
}

namespace {

constexpr std::int64_t kBlock = 2048;  // sums of a block stay in the first cache

// Integers wrap without undefined behaviour.
template <class T>
auto wide_type() {
  if constexpr (is_half<T>)
    return float{};
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return std::uint64_t{};
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return std::uint32_t{};
  else if constexpr (std::is_same_v<T, bool>)
    return std::uint8_t{};
  else
    return T{};
}
template <class T>
using Sum = decltype(wide_type<T>());

template <class T>
Sum<T> larger(Sum<T> a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a > std::uint8_t(b) ? a : std::uint8_t(b);
  } else if constexpr (std::is_integral_v<T>) {
    return T(a) > b ? a : Sum<T>(b);
  } else {
    const Sum<T> value = Sum<T>(b);
    return value > a || value != value ? value : a;  // a NaN stays
  }
}

template <class T>
void reduce(ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count) {
  std::array<Sum<T>, kBlock> sums;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    const auto at = [&](std::size_t r) { return reinterpret_cast<const T*>(parts[r]) + begin; };
    const T* first = at(0);
    for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = Sum<T>(first[i]);
    for (std::size_t r = 1; r < parts.size(); ++r) {
      const T* part = at(r);
      if (op == ReduceOp::max)
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = larger<T>(sums[std::size_t(i)], part[i]);
      else
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = Sum<T>(sums[std::size_t(i)] + Sum<T>(part[i]));
    }
    if constexpr (std::is_floating_point_v<Sum<T>>) {
      const Sum<T> divisor = Sum<T>(parts.size());
      if (op == ReduceOp::mean)
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] /= divisor;
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < length; ++i) to[i] = T(sums[std::size_t(i)]);
  }
}

class FlushSubnormals {
 public:
  FlushSubnormals() : old_(_mm_getcsr()) { _mm_setcsr(old_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(old_); }

 private:
  unsigned old_;
};

}  // namespace

void detail::reduce_ranks(DType dtype, ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count) {
  const FlushSubnormals flush;
  dispatch_all(dtype, [&]<class T>(T) { reduce<T>(op, parts, out, count); });
}

void run(Cpu, const ReduceRanks& k) {
  if (!k.out.has_bytes()) return;
  const std::int64_t size = std::int64_t(size_of(k.out.dtype()));
  parallel_for(k.out.numel(), 16 * kBlock, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const std::byte*> parts;
    for (std::int64_t r = 0; r < k.others.dim(0); ++r)
      parts.push_back(k.others.address() + (r * k.others.strides()[0] + begin) * size);
    parts.insert(parts.begin() + k.rank, k.own.address() + begin * size);
    detail::reduce_ranks(k.out.dtype(), k.op, parts, k.out.address() + begin * size, end - begin);
  });
}

}  // namespace refrain
