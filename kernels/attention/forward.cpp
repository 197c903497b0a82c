// Forward: one tile of queries against all keys, block of keys by block of keys, with a running maximum and sum.
#include <refrain/kernels/attention/tiles.h>

namespace refrain {

namespace attention_tiles {

namespace {

// Running statistics of a tile's queries.
template <class T>
struct OnlineSoftmax {
  alignas(64) T top[kMaxQueries];      // largest score so far
  alignas(64) T total[kMaxQueries];    // sum of exp(score - top)
  alignas(64) T rescale[kMaxQueries];  // what earlier sums must be multiplied with

  OnlineSoftmax() {
    // Finite, so that -inf - top stays -inf while a query has seen only masked keys.
    std::fill_n(top, kMaxQueries, std::numeric_limits<T>::lowest());
    std::fill_n(total, kMaxQueries, T(0));
  }

  // Scores of a block of keys become exp(score - top).
  void update(T* tile, std::int64_t num_queries, std::int64_t num_keys) {
    for_lane_groups<T>(num_queries, [&]<int n>(std::int64_t c) { update_lanes<n>(tile + c, c, num_keys); });
  }

  template <int n>
  void update_lanes(T* tile, std::int64_t c, std::int64_t num_keys) {
    const simd::Tag<T> d;
    simd::Vector<T> largest[n], sum[n];
    for (int v = 0; v < n; ++v) largest[v] = hn::Load(d, top + c + v * kLanes<T>);
    for (std::int64_t j = 0; j < num_keys; ++j) {
      for (int v = 0; v < n; ++v) largest[v] = hn::Max(largest[v], hn::Load(d, tile + j * kTileStride + v * kLanes<T>));
    }
    for (int v = 0; v < n; ++v) {
      const std::int64_t at = c + v * kLanes<T>;
      const auto factor = simd::exp_nonpositive(d, hn::Sub(hn::Load(d, top + at), largest[v]));
      sum[v] = hn::Mul(hn::Load(d, total + at), factor);
      hn::Store(factor, d, rescale + at);
      hn::Store(largest[v], d, top + at);
    }
    for (std::int64_t j = 0; j < num_keys; ++j) {
      for (int v = 0; v < n; ++v) {
        T* at = tile + j * kTileStride + v * kLanes<T>;
        const auto p = simd::exp_nonpositive(d, hn::Sub(hn::Load(d, at), largest[v]));
        sum[v] = hn::Add(sum[v], p);
        hn::Store(p, d, at);
      }
    }
    for (int v = 0; v < n; ++v) hn::Store(sum[v], d, total + c + v * kLanes<T>);
  }

  // total becomes log-sum-exp, rescale 1 / total, or 0 for queries that saw no key.
  void finish(std::int64_t num_queries) {
    const simd::Tag<T> d;
    for (std::int64_t c = 0; c < num_queries; c += kLanes<T>) {
      const auto sum = hn::Load(d, total + c);
      hn::Store(hn::IfThenZeroElse(hn::Eq(sum, hn::Zero(d)), hn::Div(hn::Set(d, T(1)), sum)), d, rescale + c);
      hn::Store(hn::Add(hn::Load(d, top + c), simd::log(d, sum)), d, total + c);
    }
  }
};

template <class T, class S>
void scale_row(const T* row, T factor, S* out, std::int64_t width) {
  simd::map(row, out, width, [factor](auto d, auto x) HWY_ATTR { return hn::Mul(x, hn::Set(d, factor)); });
}

template <class S>
void attend(const AttentionForward& k, std::int64_t sample, std::int64_t head, std::int64_t query_block) {
  using T = accumulator_t<S>;
  const std::int64_t width = k.q.dim(3);
  const Blocks queries = query_blocks(k.q.dim(1)), keys = key_blocks(k.k.dim(1));
  const std::int64_t i0 = queries.begin(query_block), num_queries = queries.length(query_block);
  const auto q = head_rows<S>(k.q, sample, head), key_rows = head_rows<S>(k.k, sample, head), v_rows = head_rows<S>(k.v, sample, head);
  const auto out = head_rows<S>(k.out, sample, head);
  alignas(64) T packed_q[kMaxHeadDim * kTileStride];
  alignas(64) T tile[kMaxKeys * kTileStride];
  alignas(64) T wide[only_16_bit<S>(kMaxKeys * kMaxHeadDim)];
  alignas(64) T wide_out[only_16_bit<S>(kMaxQueries * kMaxHeadDim)];
  OnlineSoftmax<T> softmax;
  pack_transposed<T>(wide_rows(q, i0, num_queries, width, wide), 0, num_queries, width, T(k.scale), packed_q);
  // Where the weighted values are summed: in the output itself when it is wide enough.
  Rows<T> sums{wide_out, width};
  if constexpr (!is_half<S>) sums = {out.first ? out[i0] : nullptr, out.step};
  if (out.first) clear_rows(sums, 0, num_queries, width);

  bool is_first = true;
  for (std::int64_t block = 0; block < keys.count; ++block) {
    const std::int64_t j0 = keys.begin(block), num_keys = keys.length(block);
    const TileMask mask(k, sample, i0, num_queries, j0, num_keys);
    if (mask.all) continue;
    const Rows<const T> key = wide_rows(key_rows, j0, num_keys, width, wide);
    tile_product<TileLayout::rows>(num_keys, whole_vectors<T>(num_queries), width, key.first, key.step, packed_q, kTileStride, tile,
                                   kTileStride, false);
    mask.apply(tile, num_keys);
    softmax.update(tile, num_queries, num_keys);
    if (!out.first) continue;
    for (std::int64_t i = 0; !is_first && i < num_queries; ++i) scale_row(sums[i], softmax.rescale[i], sums[i], width);
    is_first = false;
    if (k.dropout > 0) {
      alignas(64) T keep[kMaxKeys * kTileStride];
      fill_keep(k, sample, head, i0, num_queries, j0, num_keys, keep);
      for (std::int64_t j = 0; j < num_keys; ++j) {
        T* row = tile + j * kTileStride;
        simd::map(row, keep + j * kTileStride, row, num_queries, [](auto, auto p, auto factor) HWY_ATTR { return hn::Mul(p, factor); });
      }
    }
    const Rows<const T> v = wide_rows(v_rows, j0, num_keys, width, wide);
    tile_product<TileLayout::transposed, T>(num_queries, width, num_keys, tile, 0, v.first, v.step, sums.first, sums.step, true);
  }

  softmax.finish(num_queries);
  for (std::int64_t i = 0; out.first && i < num_queries; ++i) scale_row(sums[i], softmax.rescale[i], out[i0 + i], width);
  if (k.lse.has_bytes()) {
    T* lse = k.lse.data<T>() + (sample * k.q.dim(2) + head) * k.q.dim(1) + i0;
    std::copy_n(softmax.total, num_queries, lse);
  }
}

}  // namespace

}  // namespace attention_tiles

void run(Cpu, const AttentionForward& k) {
  using namespace attention_tiles;
  const std::int64_t num_heads = k.q.dim(0) * k.q.dim(2), blocks = query_blocks(k.q.dim(1)).count;
  if (num_heads * blocks == 0) return;
  if (!k.out.has_bytes() && !k.lse.has_bytes()) return;
  dispatch_floating(k.q.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    // About 10 µs of work a piece.
    const double flops = 4.0 * double(std::min(kMaxQueries, k.q.dim(1))) * double(k.k.dim(1)) * double(k.q.dim(3));
    const std::int64_t grain = std::max<std::int64_t>(1, std::int64_t(0x1p19 / (flops + 1)));
    parallel_for(num_heads * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) attend<S>(k, i / blocks / k.q.dim(2), i / blocks % k.q.dim(2), i % blocks);
    });
  });
}

}  // namespace refrain
