// Backward: probabilities are made again from q, k and the log-sum-exp, tile by tile. With P the (dropped out)
// probabilities and dP = grad_out·vᵀ: grad_v = Pᵀ·grad_out, dS = P∘(dP - rowsum(grad_out∘out))·scale, grad_q = dS·k,
// grad_k = dSᵀ·q. Every gradient is summed in the order of the tiles, whichever way they are spread over threads: in
// place, or for 16-bit types in f32 on the stack, and then rounded.
#include <refrain/kernels/attention/tiles.h>

namespace refrain {

namespace attention_tiles {

namespace {

// Sums of grad_q that fit on the stack, for 16-bit types: a head of 1,024 queries of width 64.
constexpr std::int64_t kMaxQuerySums = 65536;

template <class S>
class HeadBackward {
  using T = accumulator_t<S>;

 public:
  HeadBackward(const AttentionBackward& k, std::int64_t sample, std::int64_t head)
      : k_(k),
        sample_(sample),
        head_(head),
        width_(k.q.dim(3)),
        q_(head_rows<S>(k.q, sample, head)),
        key_(head_rows<S>(k.k, sample, head)),
        v_(head_rows<S>(k.v, sample, head)),
        attended_(head_rows<S>(k.attended, sample, head)),
        grad_out_(head_rows<S>(k.grad_out, sample, head)),
        grad_q_(head_rows<S>(k.out, sample, head)),
        grad_k_(head_rows<S>(k.grad_k, sample, head)),
        grad_v_(head_rows<S>(k.grad_v, sample, head)),
        queries_(query_blocks(k.q.dim(1))),
        keys_(key_blocks(k.k.dim(1))) {}

  void all() {
    if constexpr (is_half<S>) {
      if (queries_.total * width_ <= kMaxQuerySums) return all_by_keys();
      for (std::int64_t a = 0; a < queries_.count; ++a) query_half(a);
      for (std::int64_t b = 0; b < keys_.count; ++b) key_half(b);
    } else {
      for (std::int64_t b = 0; b < keys_.count; ++b) clear_keys(b);
      for (std::int64_t a = 0; a < queries_.count; ++a) {
        load_queries(a);
        const Rows<T> sums_q = start(grad_q_, i0_, num_queries_, sums_q_);
        for (std::int64_t b = 0; b < keys_.count; ++b) {
          load_keys(b);
          tile(sums_q, at(grad_k_, j0_), at(grad_v_, j0_));
        }
      }
    }
  }
  // The two halves for heads that are spread over threads, or too long to be summed on the stack: they make the scores
  // twice.
  void query_half(std::int64_t query_block) {
    load_queries(query_block);
    const Rows<T> sums = start(grad_q_, i0_, num_queries_, sums_q_);
    for (std::int64_t b = 0; sums.first && b < keys_.count; ++b) {
      load_keys(b);
      tile(sums, {}, {});
    }
    finish(sums, grad_q_, i0_, num_queries_);
  }
  void key_half(std::int64_t key_block) {
    load_keys(key_block);
    const Rows<T> sums_k = start(grad_k_, j0_, num_keys_, sums_k_), sums_v = start(grad_v_, j0_, num_keys_, sums_v_);
    for (std::int64_t a = 0; (sums_k.first || sums_v.first) && a < queries_.count; ++a) {
      load_queries(a);
      tile({}, sums_k, sums_v);
    }
    finish(sums_k, grad_k_, j0_, num_keys_);
    finish(sums_v, grad_v_, j0_, num_keys_);
  }

 private:
  // Key blocks outside: the sums of a block's keys and of all queries are on the stack.
  void all_by_keys() {
    const Rows<T> sums_q = start(grad_q_, 0, queries_.total, sums_q_);
    for (std::int64_t b = 0; b < keys_.count; ++b) {
      load_keys(b);
      const Rows<T> sums_k = start(grad_k_, j0_, num_keys_, sums_k_), sums_v = start(grad_v_, j0_, num_keys_, sums_v_);
      for (std::int64_t a = 0; a < queries_.count; ++a) {
        load_queries(a);
        tile(at(sums_q, i0_), sums_k, sums_v);
      }
      finish(sums_k, grad_k_, j0_, num_keys_);
      finish(sums_v, grad_v_, j0_, num_keys_);
    }
    finish(sums_q, grad_q_, 0, queries_.total);
  }

  template <class E>
  static Rows<E> at(Rows<E> rows, std::int64_t begin) {
    return rows.first ? Rows<E>{rows[begin], rows.step} : rows;
  }
  // Where rows begin … begin + count of a gradient are summed, cleared: in place, or in `buffer`. Null when not wanted.
  Rows<T> start(Rows<S> gradient, [[maybe_unused]] std::int64_t begin, std::int64_t count, [[maybe_unused]] T* buffer) const {
    if (gradient.first == nullptr) return {nullptr, 0};
    Rows<T> sums{buffer, width_};
    if constexpr (!is_half<S>) sums = at(gradient, begin);
    clear_rows(sums, 0, count, width_);
    return sums;
  }
  void finish([[maybe_unused]] Rows<T> sums, [[maybe_unused]] Rows<S> gradient, [[maybe_unused]] std::int64_t begin,
              [[maybe_unused]] std::int64_t count) const {
    if constexpr (is_half<S>) {
      if (sums.first) round_rows(sums.first, gradient, begin, count, width_);
    }
  }
  void clear_keys(std::int64_t block) {
    if (grad_k_.first) clear_rows(grad_k_, keys_.begin(block), keys_.length(block), width_);
    if (grad_v_.first) clear_rows(grad_v_, keys_.begin(block), keys_.length(block), width_);
  }

  void load_keys(std::int64_t block) {
    j0_ = keys_.begin(block);
    num_keys_ = keys_.length(block);
    key_block_ = wide_rows(key_, j0_, num_keys_, width_, wide_key_);
    v_block_ = wide_rows(v_, j0_, num_keys_, width_, wide_v_);
  }

  void load_queries(std::int64_t block) {
    i0_ = queries_.begin(block);
    num_queries_ = queries_.length(block);
    q_block_ = wide_rows(q_, i0_, num_queries_, width_, wide_q_);
    grad_block_ = wide_rows(grad_out_, i0_, num_queries_, width_, wide_grad_);
    pack_transposed<T>(q_block_, 0, num_queries_, width_, T(k_.scale), packed_q_);
    pack_transposed<T>(grad_block_, 0, num_queries_, width_, T(1), packed_grad_);
    const T* lse = k_.lse.template data<T>() + (sample_ * k_.q.dim(2) + head_) * k_.q.dim(1) + i0_;
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      // A query without keys: all its scores are -inf, and -inf - 0 gives probability 0.
      lse_[i] = lse[i] == -std::numeric_limits<T>::infinity() ? T(0) : lse[i];
      delta_[i] = dot(grad_block_[i], attended_[i0_ + i]);
    }
    std::fill(lse_ + num_queries_, lse_ + kMaxQueries, T(0));
    std::fill(delta_ + num_queries_, delta_ + kMaxQueries, T(0));
  }

  T dot(const T* a, const S* b) const {
    const simd::Tag<T> d;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < width_; c += kLanes<T>) {
      const std::size_t rest = std::size_t(width_ - c);
      sum = hn::MulAdd(simd::load_first(d, a + c, rest), simd::load_first(d, b + c, rest), sum);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  // Adds a tile's part to the sums of its queries and keys that are given.
  void tile(Rows<T> grad_q, Rows<T> grad_k, Rows<T> grad_v) {
    const std::int64_t lanes = whole_vectors<T>(num_queries_);
    const TileMask mask(k_, sample_, i0_, num_queries_, j0_, num_keys_);
    if (mask.all) return;
    tile_product<TileLayout::rows>(num_keys_, lanes, width_, key_block_.first, key_block_.step, packed_q_, kTileStride, p_, kTileStride,
                                   false);
    mask.apply(p_, num_keys_);
    const bool wants_scores = grad_q.first || grad_k.first;
    if (wants_scores) {
      tile_product<TileLayout::rows>(num_keys_, lanes, width_, v_block_.first, v_block_.step, packed_grad_, kTileStride, ds_, kTileStride,
                                     false);
    }
    if (k_.dropout > 0) {
      alignas(64) T keep[kMaxKeys * kTileStride];
      fill_keep(k_, sample_, head_, i0_, num_queries_, j0_, num_keys_, keep);
      probabilities<true>(num_keys_, wants_scores, keep);
    } else {
      probabilities<false>(num_keys_, wants_scores, nullptr);
    }
    if (grad_v.first) {
      tile_product<TileLayout::tile, T>(num_keys_, width_, num_queries_, p_, 0, grad_block_.first, grad_block_.step, grad_v.first,
                                        grad_v.step, true);
    }
    if (grad_k.first) {
      tile_product<TileLayout::tile, T>(num_keys_, width_, num_queries_, ds_, 0, q_block_.first, q_block_.step, grad_k.first, grad_k.step,
                                        true);
    }
    if (grad_q.first) {
      tile_product<TileLayout::transposed, T>(num_queries_, width_, num_keys_, ds_, 0, key_block_.first, key_block_.step, grad_q.first,
                                              grad_q.step, true);
    }
  }

  // p: scores → probabilities; ds: dP → dS.
  template <bool kDropout>
  void probabilities(std::int64_t num_keys, bool wants_scores, const T* keep) {
    const simd::Tag<T> d;
    const auto scale = hn::Set(d, T(k_.scale));
    for_lane_groups<T>(num_queries_, [&]<int n>(std::int64_t c) {
      simd::Vector<T> lse[n], delta[n];
      for (int v = 0; v < n; ++v) {
        lse[v] = hn::Load(d, lse_ + c + v * kLanes<T>);
        delta[v] = hn::Load(d, delta_ + c + v * kLanes<T>);
      }
      for (std::int64_t j = 0; j < num_keys; ++j) {
        for (int v = 0; v < n; ++v) {
          const std::int64_t at = j * kTileStride + c + v * kLanes<T>;
          const auto p = simd::exp_nonpositive(d, hn::Sub(hn::Load(d, p_ + at), lse[v]));
          auto factor = hn::Zero(d);
          if constexpr (kDropout) factor = hn::Load(d, keep + at);
          if (wants_scores) {
            auto dp = hn::Load(d, ds_ + at);
            if constexpr (kDropout) dp = hn::Mul(dp, factor);
            hn::Store(hn::Mul(hn::Mul(p, hn::Sub(dp, delta[v])), scale), d, ds_ + at);
          }
          hn::Store(kDropout ? hn::Mul(p, factor) : p, d, p_ + at);
        }
      }
    });
  }

  const AttentionBackward& k_;
  std::int64_t sample_, head_, width_, i0_ = 0, num_queries_ = 0, j0_ = 0, num_keys_ = 0;
  Rows<const S> q_, key_, v_, attended_, grad_out_;
  Rows<S> grad_q_, grad_k_, grad_v_;
  Rows<const T> q_block_{}, grad_block_{}, key_block_{}, v_block_{};
  Blocks queries_, keys_;
  alignas(64) T lse_[kMaxQueries];
  alignas(64) T delta_[kMaxQueries];
  alignas(64) T packed_q_[kMaxHeadDim * kTileStride];
  alignas(64) T packed_grad_[kMaxHeadDim * kTileStride];
  alignas(64) T p_[kMaxKeys * kTileStride];
  alignas(64) T ds_[kMaxKeys * kTileStride];
  alignas(64) T wide_q_[only_16_bit<S>(kMaxQueries * kMaxHeadDim)];
  alignas(64) T wide_grad_[only_16_bit<S>(kMaxQueries * kMaxHeadDim)];
  alignas(64) T wide_key_[only_16_bit<S>(kMaxKeys * kMaxHeadDim)];
  alignas(64) T wide_v_[only_16_bit<S>(kMaxKeys * kMaxHeadDim)];
  alignas(64) T sums_q_[only_16_bit<S>(kMaxQuerySums)];
  alignas(64) T sums_k_[only_16_bit<S>(kMaxKeys * kMaxHeadDim)];
  alignas(64) T sums_v_[only_16_bit<S>(kMaxKeys * kMaxHeadDim)];
};

}  // namespace

}  // namespace attention_tiles

void run(Cpu, const AttentionBackward& k) {
  using namespace attention_tiles;
  const std::int64_t num_heads = k.q.dim(0) * k.q.dim(2), heads = k.q.dim(2);
  if (num_heads == 0) return;
  const std::int64_t query_count = query_blocks(k.q.dim(1)).count, key_count = key_blocks(k.k.dim(1)).count;
  dispatch_floating(k.q.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    // A head a piece; fewer than four heads are cut further, at the price of making the scores twice.
    if (num_heads < 4 && query_count * key_count > 1) {
      const std::int64_t pieces = query_count + key_count;
      parallel_pieces(num_heads * pieces, [&](std::int64_t i) {
        HeadBackward<S> head(k, i / pieces / heads, i / pieces % heads);
        if (i % pieces < query_count)
          head.query_half(i % pieces);
        else
          head.key_half(i % pieces - query_count);
      });
      return;
    }
    const double flops = 10.0 * double(k.q.dim(1)) * double(k.k.dim(1)) * double(k.q.dim(3));
    const std::int64_t grain = std::max<std::int64_t>(1, std::int64_t(0x1p19 / (flops + 1)));
    parallel_for(num_heads, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) HeadBackward<S>(k, i / heads, i % heads).all();
    });
  });
}

}  // namespace refrain
