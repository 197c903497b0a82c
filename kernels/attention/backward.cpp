// Backward: probabilities are made again from q, k and the log-sum-exp, tile by tile. With P the (dropped out)
// probabilities and dP = grad_out·vᵀ: grad_v = Pᵀ·grad_out, dS = P∘(dP - rowsum(grad_out∘out))·scale, grad_q = dS·k,
// grad_k = dSᵀ·q. Every gradient is summed in the order of the tiles, whichever way they are spread over threads.
#include <refrain/kernels/attention/tiles.h>

namespace refrain {

namespace attention_tiles {

namespace {

template <class T>
class HeadBackward {
 public:
  HeadBackward(const AttentionBackward& k, std::int64_t sample, std::int64_t head)
      : k_(k),
        sample_(sample),
        head_(head),
        width_(k.q.dim(3)),
        q_(head_rows<T>(k.q, sample, head)),
        key_(head_rows<T>(k.k, sample, head)),
        v_(head_rows<T>(k.v, sample, head)),
        attended_(head_rows<T>(k.attended, sample, head)),
        grad_out_(head_rows<T>(k.grad_out, sample, head)),
        grad_q_(head_rows<T>(k.out, sample, head)),
        grad_k_(head_rows<T>(k.grad_k, sample, head)),
        grad_v_(head_rows<T>(k.grad_v, sample, head)),
        queries_(query_blocks(k.q.dim(1))),
        keys_(key_blocks(k.k.dim(1))) {}

  void all() {
    for (std::int64_t b = 0; b < keys_.count; ++b) clear_keys(b);
    for (std::int64_t a = 0; a < queries_.count; ++a) {
      load_queries(a);
      clear_queries();
      for (std::int64_t b = 0; b < keys_.count; ++b) tile(b, grad_q_, grad_k_, grad_v_);
    }
  }
  // The two halves for heads that are spread over threads: they make the scores twice.
  void query_half(std::int64_t query_block) {
    load_queries(query_block);
    clear_queries();
    for (std::int64_t b = 0; b < keys_.count; ++b) tile(b, grad_q_, {}, {});
  }
  void key_half(std::int64_t key_block) {
    clear_keys(key_block);
    for (std::int64_t a = 0; a < queries_.count; ++a) {
      load_queries(a);
      tile(key_block, {}, grad_k_, grad_v_);
    }
  }

 private:
  void clear_queries() {
    if (grad_q_.first) clear_rows(grad_q_, i0_, num_queries_, width_);
  }
  void clear_keys(std::int64_t block) {
    if (grad_k_.first) clear_rows(grad_k_, keys_.begin(block), keys_.length(block), width_);
    if (grad_v_.first) clear_rows(grad_v_, keys_.begin(block), keys_.length(block), width_);
  }

  void load_queries(std::int64_t block) {
    i0_ = queries_.begin(block);
    num_queries_ = queries_.length(block);
    pack_transposed<T>(q_, i0_, num_queries_, width_, T(k_.scale), packed_q_);
    pack_transposed<T>(grad_out_, i0_, num_queries_, width_, T(1), packed_grad_);
    const T* lse = k_.lse.template data<T>() + (sample_ * k_.q.dim(2) + head_) * k_.q.dim(1) + i0_;
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      // A query without keys: all its scores are -inf, and -inf - 0 gives probability 0.
      lse_[i] = lse[i] == -std::numeric_limits<T>::infinity() ? T(0) : lse[i];
      delta_[i] = dot(grad_out_[i0_ + i], attended_[i0_ + i]);
    }
    std::fill(lse_ + num_queries_, lse_ + kMaxQueries, T(0));
    std::fill(delta_ + num_queries_, delta_ + kMaxQueries, T(0));
  }

  T dot(const T* a, const T* b) const {
    const simd::Tag<T> d;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < width_; c += kLanes<T>) {
      const std::size_t rest = std::size_t(width_ - c);
      sum = hn::MulAdd(simd::load_first(d, a + c, rest), simd::load_first(d, b + c, rest), sum);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  void tile(std::int64_t block, Rows<T> grad_q, Rows<T> grad_k, Rows<T> grad_v) {
    const std::int64_t j0 = keys_.begin(block), num_keys = keys_.length(block), lanes = whole_vectors<T>(num_queries_);
    const TileMask mask(k_, sample_, i0_, num_queries_, j0, num_keys);
    if (mask.all) return;
    tile_product<TileLayout::rows>(num_keys, lanes, width_, key_[j0], key_.step, packed_q_, kTileStride, p_, kTileStride, false);
    mask.apply(p_, num_keys);
    const bool wants_scores = grad_q.first || grad_k.first;
    if (wants_scores) {
      tile_product<TileLayout::rows>(num_keys, lanes, width_, v_[j0], v_.step, packed_grad_, kTileStride, ds_, kTileStride, false);
    }
    if (k_.dropout > 0) {
      alignas(64) T keep[kMaxKeys * kTileStride];
      fill_keep(k_, sample_, head_, i0_, num_queries_, j0, num_keys, keep);
      probabilities<true>(num_keys, wants_scores, keep);
    } else {
      probabilities<false>(num_keys, wants_scores, nullptr);
    }
    if (grad_v.first) {
      tile_product<TileLayout::tile, T>(num_keys, width_, num_queries_, p_, 0, grad_out_[i0_], grad_out_.step, grad_v[j0], grad_v.step,
                                        true);
    }
    if (grad_k.first)
      tile_product<TileLayout::tile, T>(num_keys, width_, num_queries_, ds_, 0, q_[i0_], q_.step, grad_k[j0], grad_k.step, true);
    if (grad_q.first)
      tile_product<TileLayout::transposed, T>(num_queries_, width_, num_keys, ds_, 0, key_[j0], key_.step, grad_q[i0_], grad_q.step, true);
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
  std::int64_t sample_, head_, width_, i0_ = 0, num_queries_ = 0;
  Rows<const T> q_, key_, v_, attended_, grad_out_;
  Rows<T> grad_q_, grad_k_, grad_v_;
  Blocks queries_, keys_;
  alignas(64) T lse_[kMaxQueries];
  alignas(64) T delta_[kMaxQueries];
  alignas(64) T packed_q_[kMaxHeadDim * kTileStride];
  alignas(64) T packed_grad_[kMaxHeadDim * kTileStride];
  alignas(64) T p_[kMaxKeys * kTileStride];
  alignas(64) T ds_[kMaxKeys * kTileStride];
};

}  // namespace

}  // namespace attention_tiles

void run(Cpu, const AttentionBackward& k) {
  using namespace attention_tiles;
  const std::int64_t num_heads = k.q.dim(0) * k.q.dim(2), heads = k.q.dim(2);
  if (num_heads == 0) return;
  const std::int64_t query_count = query_blocks(k.q.dim(1)).count, key_count = key_blocks(k.k.dim(1)).count;
  dispatch_wide(k.q.dtype(), k.name, [&](auto zero) {
    using T = decltype(zero);
    // A head a piece; fewer than four heads are cut further, at the price of making the scores twice.
    if (num_heads < 4 && query_count * key_count > 1) {
      const std::int64_t pieces = query_count + key_count;
      parallel_pieces(num_heads * pieces, [&](std::int64_t i) {
        HeadBackward<T> head(k, i / pieces / heads, i / pieces % heads);
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
      for (std::int64_t i = begin; i < end; ++i) HeadBackward<T>(k, i / heads, i % heads).all();
    });
  });
}

}  // namespace refrain
