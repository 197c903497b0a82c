// Dropout on the CPU.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_random.h>
#include <refrain/kernels/convert/chunk.h>
#include <refrain/kernels/dropout/dropout.h>

namespace refrain {

namespace {

namespace hn = simd::hn;

// A multiple of every target's RandomWords::step(), so that pieces begin where a vector of words does.
constexpr std::int64_t kGrain = 16384;

template <class T>
struct Piece {
  const T* x;
  const T* residual;  // or null
  T* out;
  std::int64_t n;
  std::uint64_t first;  // index of x[0] in the random stream
};

template <class T>
void drop_words(const Piece<T>& piece, const std::uint32_t* words, std::uint32_t threshold, T scale) {
  for (std::int64_t i = 0; i < piece.n; ++i) {
    const T kept = words[i] >= threshold ? piece.x[i] * scale : T(0);
    piece.out[i] = piece.residual ? piece.residual[i] + kept : kept;
  }
}

// Any type and any first element: words go through a buffer.
template <class T>
void drop_buffered(Piece<T> piece, const simd::RandomWords& words, std::uint32_t threshold, T scale) {
  constexpr std::int64_t kWords = 512;
  std::uint32_t buffer[kWords];
  for (std::int64_t left = piece.n; left > 0; left -= kWords) {
    piece.n = std::min(left, kWords);
    words.fill(piece.first, buffer, piece.n);
    drop_words(piece, buffer, threshold, scale);
    piece.x += kWords, piece.out += kWords, piece.first += kWords;
    if (piece.residual) piece.residual += kWords;
  }
}

// Floats whose first element begins a block: words stay in registers.
template <bool kHasResidual>
void drop_floats(const Piece<float>& piece, const simd::RandomWords& words, std::uint32_t threshold, float scale) {
  const simd::Tag<float> d;
  const simd::RandomWords::D32 du;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  const auto limit = hn::Set(du, threshold);
  const auto factor = hn::Set(d, scale);
  const auto drop = [&](simd::RandomWords::V32 word, std::int64_t i, std::size_t count) {
    const auto drops = hn::RebindMask(d, hn::Lt(word, limit));
    auto value = hn::IfThenZeroElse(drops, hn::Mul(simd::load_first(d, piece.x + i, count), factor));
    if constexpr (kHasResidual) value = hn::Add(simd::load_first(d, piece.residual + i, count), value);
    simd::store_first(value, d, piece.out + i, count);
  };
  simd::RandomWords::V32 lower, upper;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= piece.n; i += 2 * lanes) {
    words.next(piece.first + std::uint64_t(i), lower, upper);
    drop(lower, i, std::size_t(lanes));
    drop(upper, i + lanes, std::size_t(lanes));
  }
  if (i < piece.n) {
    words.next(piece.first + std::uint64_t(i), lower, upper);
    drop(lower, i, std::size_t(piece.n - i));
    if (i + lanes < piece.n) drop(upper, i + lanes, std::size_t(piece.n - i - lanes));
  }
}

// A piece whose operands are of T.
template <class T>
void drop(const Piece<T>& piece, const simd::RandomWords& words, std::uint32_t threshold, T scale) {
  if constexpr (std::is_same_v<T, float>) {
    if (piece.first % 4 == 0) {
      return piece.residual ? drop_floats<true>(piece, words, threshold, scale) : drop_floats<false>(piece, words, threshold, scale);
    }
  }
  drop_buffered(piece, words, threshold, scale);
}

template <class T>
void run_dropout(const Dropout& k) {
  const simd::RandomWords words(k.key);
  const bool drops_all = k.p == 1;
  const std::uint32_t threshold = drops_all ? 0 : drop_threshold(k.p);
  const T scale = drops_all ? T(0) : T(1 / (1 - k.p));
  const auto run = [&](const Piece<T>& piece) {
    if (!drops_all) return drop(piece, words, threshold, scale);
    for (std::int64_t i = 0; i < piece.n; ++i) piece.out[i] = piece.residual ? piece.residual[i] : T(0);  // not x·0: NaN for infinite x
  };
  const bool has_residual = k.residual.defined();
  const bool is_direct = k.x.dtype() == dtype_of<T> && k.out.dtype() == dtype_of<T> && (!has_residual || k.residual.dtype() == dtype_of<T>);
  parallel_for(k.out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (is_direct) {
      return run({k.x.data<T>() + begin, has_residual ? k.residual.data<T>() + begin : nullptr, k.out.data<T>() + begin, end - begin,
                  std::uint64_t(k.first_element + begin)});
    }
    HWY_ALIGN T buffer[3][kChunk];
    const auto at = [](const auto& arg, std::int64_t i) { return arg.address() + i * std::int64_t(size_of(arg.dtype())); };
    for (std::int64_t i = begin; i < end; i += kChunk) {
      const std::int64_t n = std::min(kChunk, end - i);
      run({read_chunk(k.x.dtype(), at(k.x, i), 1, n, buffer[0]),
           has_residual ? read_chunk(k.residual.dtype(), at(k.residual, i), 1, n, buffer[1]) : nullptr, buffer[2], n,
           std::uint64_t(k.first_element + i)});
      write_chunk(buffer[2], n, k.out.dtype(), at(k.out, i), 1);
    }
  });
}

void check_arguments(std::string_view name, double p, const In& x, const Out& out) {
  check(p >= 0 && p <= 1, name, ": p must be in [0, 1], got ", p);
  check_floating(name, "x", x);
  check_contiguous(name, "x", x);
  check_shape(name, "out", out, x.shape());
  check_floating(name, "out", out);
  check_contiguous(name, "out", out);
}

// All of one dtype, or f32 with one 16-bit type.
void check_mixes(std::string_view name, std::string_view argument, DType a, DType b) {
  check(a == b || (a == DType::f32 && is_16_bit(b)) || (is_16_bit(a) && b == DType::f32), name, ": ", argument, " must be ", a,
        ", or f32 with a 16-bit type, got ", b);
}

}  // namespace

std::uint32_t drop_threshold(double p) { return std::uint32_t(p * 4294967296.0); }

void validate(const Dropout& k) {
  check_arguments(k.name, k.p, k.x, k.out);
  check(k.first_element >= 0, k.name, ": first_element must not be negative, got ", k.first_element);
  check_mixes(k.name, "out", k.x.dtype(), k.out.dtype());
  if (!k.residual) return;
  check_shape(k.name, "residual", k.residual, k.x.shape());
  check_mixes(k.name, "residual", k.x.dtype(), k.residual.dtype());
  check_mixes(k.name, "residual", k.out.dtype(), k.residual.dtype());
  check_contiguous(k.name, "residual", k.residual);
}
Cost cost(const Dropout& k) { return {double(k.x.numel()), k.x.bytes() + k.out.bytes() + (k.residual ? k.residual.bytes() : 0)}; }

void run(Cpu, const Dropout& k) {
  if (!k.out.has_bytes()) return;
  k.x.dtype() == DType::f64 ? run_dropout<double>(k) : run_dropout<float>(k);
}

void validate(const StochasticDepth& k) {
  check_arguments(k.name, k.p, k.x, k.out);
  check(k.x.num_dims() >= 1, k.name, ": x must have a batch dim, got ", k.x.shape());
  check_dtype(k.name, "out", k.out, k.x.dtype());
  check(k.first_sample >= 0, k.name, ": first_sample must not be negative, got ", k.first_sample);
}
Cost cost(const StochasticDepth& k) { return {double(k.x.numel()), k.x.bytes() + k.out.bytes()}; }

void run(Cpu, const StochasticDepth& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    using T = accumulator_t<S>;
    const std::int64_t per_sample = k.x.numel() / k.x.dim(0);
    const std::uint32_t threshold = k.p < 1 ? drop_threshold(k.p) : 0;
    const T scale = k.p < 1 ? T(1 / (1 - k.p)) : T(0);
    const S* x = k.x.data<S>();
    S* out = k.out.data<S>();
    parallel_for(k.out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t sample = begin / per_sample, stop = std::min(end, (sample + 1) * per_sample);
        const bool keep = k.p < 1 && k.key.word(std::uint64_t(k.first_sample + sample)) >= threshold;
        if (keep)
          simd::map(x + begin, out + begin, stop - begin, [scale](auto d, auto v) { return hn::Mul(v, hn::Set(d, scale)); });
        else
          std::fill(out + begin, out + stop, S{});
        begin = stop;
      }
    });
  });
}

}  // namespace refrain
