// Sums on the CPU.
#include <refrain/core/rounding.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/sum_plan.h>

#include <algorithm>

namespace refrain {

namespace {

namespace hn = simd::hn;

// Whether a sum of X may be stored as O: as X itself, or between f32 and a 16-bit type.
template <class X, class O>
inline constexpr bool kSumsInto = std::is_same_v<X, O> || (std::is_same_v<X, float> && is_half<O>) ||
                                  (is_half<X> && std::is_same_v<O, float>);

// Elements a piece of parallel work reads, and columns it holds partial sums for.
constexpr std::int64_t kGrain = 32768, kColumns = 512;

// to[c] = Σ_r x[r·stride + c] for c below `columns` (at most kColumns): four rows are added to each other first.
template <class X, class T = accumulator_t<X>>
void sum_columns(const X* x, std::int64_t rows, std::int64_t stride, std::int64_t columns, T* to) {
  std::int64_t r = 0;
  std::fill_n(to, columns, T(0));
  const simd::Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  const auto add_rows = [&](auto&& rows_at) {
    std::int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) {
      const auto load = [&](const X* p) { return simd::load(d, p + c); };
      hn::StoreU(hn::Add(hn::LoadU(d, to + c), rows_at(load)), d, to + c);
    }
    if (c < columns) {
      const std::size_t rest = std::size_t(columns - c);
      const auto load = [&](const X* p) { return simd::load_first(d, p + c, rest); };
      simd::store_first(hn::Add(simd::load_first(d, to + c, rest), rows_at(load)), d, to + c, rest);
    }
  };
  for (; r + 4 <= rows; r += 4) {
    const X* p = x + r * stride;
    add_rows([&](auto load) { return hn::Add(hn::Add(load(p), load(p + stride)), hn::Add(load(p + 2 * stride), load(p + 3 * stride))); });
  }
  for (; r < rows; ++r) add_rows([&](auto load) { return load(x + r * stride); });
}

template <class X, class O>
class Summation {
  using T = accumulator_t<X>;

 public:
  explicit Summation(const Sum& k) : plan_(k.x.shape(), k.out.shape()), x_(k.x.data<X>()), out_(k.out.data<O>()), scale_(k.scale) {
    direct_ = !plan_.needs_scratch();
    if (!direct_) partial_ = k.scratch.data<T>();
  }

  void run() {
    plan_.columns == 1 ? partial_rows() : partial_columns();
    if (!direct_) combine();
  }

 private:
  // Writes Σ of one block; `index` counts outer indexes × blocks.
  void store(std::int64_t index, T sum) {
    if (direct_)
      out_[index] = rounded<O>(double(sum) * scale_);
    else
      partial_[index] = sum;
  }

  void partial_rows() {
    const std::int64_t per_piece = std::max<std::int64_t>(1, kGrain / std::min(plan_.block, plan_.reduced));
    parallel_for(plan_.outer_count * plan_.num_blocks, per_piece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i % plan_.num_blocks * plan_.block;
        const X* row = x_ + i / plan_.num_blocks * plan_.reduced;
        store(i, simd::sum_of(row + first, std::min(plan_.block, plan_.reduced - first), [](auto, auto v) { return v; }));
      }
    });
  }

  void partial_columns() {
    const std::int64_t cuts = (plan_.columns + kColumns - 1) / kColumns;
    const std::int64_t work = std::min(plan_.block, plan_.reduced) * std::min(plan_.columns, kColumns);
    parallel_for(plan_.outer_count * plan_.num_blocks * cuts, std::max<std::int64_t>(1, kGrain / work),
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_ALIGN T sums[kColumns];
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t index = i / cuts, column = i % cuts * kColumns;
                     const std::int64_t count = std::min(kColumns, plan_.columns - column);
                     const std::int64_t first = index % plan_.num_blocks * plan_.block;
                     const X* x = x_ + (index / plan_.num_blocks * plan_.reduced + first) * plan_.columns + column;
                     sum_columns(x, std::min(plan_.block, plan_.reduced - first), plan_.columns, count, sums);
                     for (std::int64_t c = 0; c < count; ++c) store(index * plan_.columns + column + c, sums[c]);
                   }
                 });
  }

  // Adds the partial sums that belong together, in order.
  void combine() {
    const std::int64_t cuts = (plan_.columns + kColumns - 1) / kColumns;
    const std::int64_t terms = plan_.outer_count / plan_.outer_kept;
    const std::int64_t work = terms * plan_.num_blocks * std::min(plan_.columns, kColumns);
    parallel_for(plan_.outer_kept * cuts, std::max<std::int64_t>(1, kGrain / work), [&](std::int64_t begin, std::int64_t end) {
      double sums[kColumns];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t kept = i / cuts, column = i % cuts * kColumns;
        const std::int64_t count = std::min(kColumns, plan_.columns - column);
        std::fill_n(sums, count, 0.0);
        for (std::int64_t term = 0; term < terms; ++term) {
          const T* partial = partial_ + outer_index(kept, term) * plan_.num_blocks * plan_.columns + column;
          for (std::int64_t block = 0; block < plan_.num_blocks; ++block, partial += plan_.columns) {
            for (std::int64_t c = 0; c < count; ++c) sums[c] += double(partial[c]);
          }
        }
        for (std::int64_t c = 0; c < count; ++c) out_[kept * plan_.columns + column + c] = rounded<O>(sums[c] * scale_);
      }
    });
  }

  // The outer index with this index among the kept dims and that among the reduced ones.
  std::int64_t outer_index(std::int64_t kept, std::int64_t term) const {
    std::int64_t index = 0, step = 1;
    for (int i = plan_.num_outer - 1; i >= 0; --i) {
      const auto [extent, is_reduced] = plan_.outer[std::size_t(i)];
      std::int64_t& rest = is_reduced ? term : kept;
      index += rest % extent * step;
      rest /= extent;
      step *= extent;
    }
    return index;
  }

  SumPlan plan_;
  const X* x_;
  O* out_;
  T* partial_ = nullptr;
  double scale_;
  bool direct_;
};

}  // namespace

void run(Cpu, const Sum& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  dispatch_floating(k.x.dtype(), k.name, [&](auto from) {
    using X = decltype(from);
    dispatch_floating(k.out.dtype(), k.name, [&](auto to) {
      using O = decltype(to);
      if constexpr (kSumsInto<X, O>) {  // validate() has refused the others
        if (k.x.numel() == 0)
          std::fill_n(k.out.data<O>(), k.out.numel(), rounded<O>(0 * k.scale));
        else
          Summation<X, O>(k).run();
      }
    });
  });
}

namespace {

double squared_norm(const In& in, double* partial) {
  const std::int64_t pieces = squared_norm_scratch_numel(in.numel());
  const std::int64_t block = std::max<std::int64_t>(1, (in.numel() + pieces - 1) / pieces);
  dispatch_floating(in.dtype(), SquaredNorm::name, [&](auto zero) {
    using X = decltype(zero);
    const X* x = in.data<X>();
    parallel_for(pieces, 4, [&](std::int64_t begin, std::int64_t end) {
      const simd::Tag<double> d;
      const std::int64_t lanes = std::int64_t(hn::Lanes(d));
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const X* p = x + piece * block;
        const std::int64_t n = std::max<std::int64_t>(0, std::min(block, in.numel() - piece * block));
        const auto load = [&](std::int64_t i) {
          if constexpr (std::is_same_v<X, double>)
            return simd::load_first(d, p + i, std::size_t(n - i));
          else
            return hn::PromoteTo(d, simd::load_first(hn::Rebind<float, decltype(d)>(), p + i, std::size_t(n - i)));
        };
        auto s0 = hn::Zero(d), s1 = s0;
        for (std::int64_t i = 0; i < n; i += 2 * lanes) {
          const auto v0 = load(i);
          s0 = hn::MulAdd(v0, v0, s0);
          if (i + lanes < n) {
            const auto v1 = load(i + lanes);
            s1 = hn::MulAdd(v1, v1, s1);
          }
        }
        partial[piece] = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
      }
    });
  });
  double sum = 0;
  for (std::int64_t i = 0; i < pieces; ++i) sum += partial[i];
  return sum;
}

}  // namespace

void run(Cpu, const SquaredNorm& k) {
  if (!k.out.has_bytes()) return;
  const double sum = squared_norm(k.x, k.scratch.data<double>());
  *k.out.data<double>() = sum;
  if (k.guard.has_bytes()) *k.guard.data<double>() += sum - sum;
}

void run(Cpu, const SquaredNorms& k) {
  if (!k.out.has_bytes()) return;
  for (std::size_t i = 0; i < k.x.size(); ++i) k.out.data<double>()[i] = squared_norm(k.x[i], k.scratch.data<double>());
}

}  // namespace refrain
