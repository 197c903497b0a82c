// Attention backward on tensor cores, for 16-bit types and the usual head dims; others go to generic_backward.cu.
//
// Nothing of size Tq×Tk was stored: probabilities are made again, P = exp(scale·q·k - lse), tile by tile (Dao et al.,
// "FlashAttention", 2022). With dP = grad_out·vᵀ and delta = rowsum(grad_out·out) per query (one small kernel before):
// grad_v = Pᵀ·grad_out, dS = P·(dP - delta), grad_q = scale·dS·k, grad_k = scale·dSᵀ·q.
//
// A gradient is summed by one warp in the order of the tiles: the same bits every time. One kernel that makes each tile once
// would add to grad_q, or to grad_k and grad_v, from many blocks, by atomics in any order and in an f32 copy of the gradient.
// Here one kernel owns keys and visits queries, another owns queries and visits keys: seven products of a tile instead of
// five, no memory besides delta.
//
// Warps hold their own rows of a product on the left: queries for grad_q, keys (scores transposed) for grad_k and grad_v. P and
// dS then are the left operands of the next products where they lie, in registers. They are rounded to 16 bits for those
// products; sums are f32 and rounded once. Tiles arrive while others are computed with, as in forward.cu.
#include <refrain/kernels/attention/fragment_masks.cuh>

namespace refrain {

namespace attention_kernels {

template <class T>
struct BackwardArguments {
  Heads<const T> q, k, v, grad_out;
  Heads<T> grad_q, grad_k, grad_v;
  const float *lse, *delta;  // [B, H, Tq]
  Pairs pairs;
  ScaleParts scale;
};

inline constexpr float kLog2E = 1.44269504088896340736f;

// Of a query: what its scores are lowered by, as an exponent of two, and delta. A query without keys has only hidden scores.
struct QueryTerms {
  float base = 0, delta = 0;

  __device__ __forceinline__ QueryTerms(const Pairs& pairs, const float* lse, const float* deltas, std::int64_t head, int query) {
    if (query >= pairs.num_queries) return;
    const float log_sum = lse[head * pairs.num_queries + query];
    base = log_sum == -INFINITY ? 0.f : log_sum * kLog2E;
    delta = deltas[head * pairs.num_queries + query];
  }
};

// A tile's scores s become its dropped-out probabilities, but for the factor 1 / (1 - dropout), and dp becomes dS.
// terms(r, i) tells of element i of a thread's fragments in row group r.
template <int R, int N, bool kTransposed, class Terms>
__device__ __forceinline__ void differentiate(float (&s)[R][N][4], float (&dp)[R][N][4], const Pairs& pairs, float exponent,
                                              const PairTile<kTransposed>& tile, int own, bool hides_any, Terms&& terms) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    unsigned visible = ~0u, kept = ~0u;
    if (hides_any) visible = visible_bits<N>(pairs, tile, own + 16 * r);
    if (pairs.has_dropout) kept = kept_bits<N>(pairs, tile, own + 16 * r);
    const float factor = float(pairs.kept);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const auto [base, delta] = terms(r, n, e);
        const bool is_visible = visible >> (4 * n + e) & 1u, is_kept = kept >> (4 * n + e) & 1u;
        const float p = is_visible ? cuda::exp2_approximate(__fmaf_rn(s[r][n][e], exponent, -base)) : 0.f;
        s[r][n][e] = is_kept ? p : 0.f;
        dp[r][n][e] = p * __fmaf_rn(is_kept ? dp[r][n][e] : 0.f, factor, -delta);
      }
  }
}

template <int R>
struct SameFactor {
  float values[R][2];
  __device__ __forceinline__ explicit SameFactor(float factor) {
#pragma unroll
    for (int r = 0; r < R; ++r) values[r][0] = values[r][1] = factor;
  }
};

// A block owns queries and visits keys.
template <class T, int D, int R, int kKeys>
__global__ void __launch_bounds__(kThreads) query_gradient_kernel(const BackwardArguments<T> a) {
  constexpr int kQueries = kWarps * 16 * R, N = kKeys / 8;
  REFRAIN_DYNAMIC_SHARED(T, q_tile);
  T *const grad_tile = q_tile + kQueries * D, *const v_tile = grad_tile + kQueries * D;
  T *k_tile = v_tile + kKeys * D, *next_k_tile = k_tile + kKeys * D;
  const Pairs& pairs = a.pairs;
  const int num_tiles = (pairs.num_queries + kQueries - 1) / kQueries;
  const int i0 = (num_tiles - 1 - int(blockIdx.x) % num_tiles) * kQueries;
  const std::int64_t head = blockIdx.x / num_tiles;
  const int sample = int(head / pairs.num_heads), head_of_sample = int(head % pairs.num_heads);
  const T *const k = a.k.rows(sample, head_of_sample), *const v = a.v.rows(sample, head_of_sample);
  const int own = warp_of_thread() * 16 * R, lane = lane_of_thread();
  const int end = end_of_visible_keys<kThreads>(pairs, sample, 0, pairs.end_of_keys(i0 + kQueries));

  float base[R][2], delta[R][2], sums[R][D / 8][4] = {};
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const QueryTerms terms(pairs, a.lse, a.delta, head, i0 + own + 16 * r + 8 * h + lane / 4);
      base[r][h] = terms.base, delta[r][h] = terms.delta;
    }
  load_rows<D, kQueries>(q_tile, a.q, a.q.rows(sample, head_of_sample), i0, pairs.num_queries);
  load_rows<D, kQueries>(grad_tile, a.grad_out, a.grad_out.rows(sample, head_of_sample), i0, pairs.num_queries);
  if (end > 0) {
    load_rows<D, kKeys>(k_tile, a.k, k, 0, pairs.num_keys);
    load_rows<D, kKeys>(v_tile, a.v, v, 0, pairs.num_keys);
  }
  cuda::cp_async_commit();
  for (int j0 = 0; j0 < end; j0 += kKeys) {
    cuda::cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and everyone is done with the keys before it
    const bool is_last = j0 + kKeys >= end;
    if (!is_last) load_rows<D, kKeys>(next_k_tile, a.k, k, j0 + kKeys, pairs.num_keys);
    cuda::cp_async_commit();
    float s[R][N][4], dp[R][N][4];
    multiply_rows<T, D, R, N>(s, q_tile, own, a.scale.flip, k_tile);
    multiply_rows<T, D, R, N>(dp, grad_tile, own, 0, v_tile);
    __syncthreads();  // everyone is done with the values
    if (!is_last) load_rows<D, kKeys>(v_tile, a.v, v, j0 + kKeys, pairs.num_keys);
    cuda::cp_async_commit();
    differentiate(s, dp, pairs, a.scale.exponent, PairTile<false>{sample, head, i0, j0}, own,
                  pairs.hides_any(i0 + own, j0 + kKeys), [&](int r, int, int e) {
                    return float2{base[r][e / 2], delta[r][e / 2]};
                  });
    unsigned ds[R][N / 2][4];
    round_to_left<T>(ds, dp);
    accumulate<T, D, R, N>(sums, ds, k_tile);
    T* const done = k_tile;
    k_tile = next_k_tile, next_k_tile = done;
  }
  cuda::cp_async_wait<0>();
  __syncthreads();  // without keys, the queries were still on their way into the tile that now takes the results
  const SameFactor<R> factor(float(pairs.scale));
  store_rows<D, R>(a.grad_q, a.grad_q.rows(sample, head_of_sample), i0, pairs.num_queries, q_tile, sums, factor.values);
}

// A block owns keys and visits queries.
template <class T, int D, int R, int kQueries>
__global__ void __launch_bounds__(kThreads) key_gradient_kernel(const BackwardArguments<T> a) {
  constexpr int kKeys = kWarps * 16 * R, N = kQueries / 8;
  REFRAIN_SHARED(float, bases, [2][kQueries]);
  REFRAIN_SHARED(float, deltas, [2][kQueries]);
  REFRAIN_DYNAMIC_SHARED(T, k_tile);
  T *const v_tile = k_tile + kKeys * D, *const grad_tile = v_tile + kKeys * D;
  T *q_tile = grad_tile + kQueries * D, *next_q_tile = q_tile + kQueries * D;
  const Pairs& pairs = a.pairs;
  const int num_tiles = (pairs.num_keys + kKeys - 1) / kKeys;
  const int j0 = int(blockIdx.x) % num_tiles * kKeys;
  const std::int64_t head = blockIdx.x / num_tiles;
  const int sample = int(head / pairs.num_heads), head_of_sample = int(head % pairs.num_heads);
  const T *const q = a.q.rows(sample, head_of_sample), *const grad = a.grad_out.rows(sample, head_of_sample);
  const int own = warp_of_thread() * 16 * R, lane = lane_of_thread();
  const int end_of_keys = min(j0 + kKeys, pairs.num_keys);
  const bool is_hidden = end_of_visible_keys<kThreads>(pairs, sample, j0, end_of_keys) == j0;
  const int begin = is_hidden ? pairs.num_queries : pairs.first_query(j0);

  float sums_k[R][D / 8][4] = {}, sums_v[R][D / 8][4] = {};
  const auto load_terms = [&](int buffer, int i0) {
    for (int i = int(threadIdx.x); i < kQueries; i += kThreads) {
      const QueryTerms terms(pairs, a.lse, a.delta, head, i0 + i);
      bases[buffer][i] = terms.base, deltas[buffer][i] = terms.delta;
    }
  };
  load_rows<D, kKeys>(k_tile, a.k, a.k.rows(sample, head_of_sample), j0, pairs.num_keys);
  load_rows<D, kKeys>(v_tile, a.v, a.v.rows(sample, head_of_sample), j0, pairs.num_keys);
  if (begin < pairs.num_queries) {
    load_rows<D, kQueries>(q_tile, a.q, q, begin, pairs.num_queries);
    load_rows<D, kQueries>(grad_tile, a.grad_out, grad, begin, pairs.num_queries);
    load_terms(0, begin);
  }
  cuda::cp_async_commit();
  int buffer = 0;
  for (int i0 = begin; i0 < pairs.num_queries; i0 += kQueries) {
    cuda::cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and everyone is done with the queries before it
    const bool is_last = i0 + kQueries >= pairs.num_queries;
    if (!is_last) {
      load_rows<D, kQueries>(next_q_tile, a.q, q, i0 + kQueries, pairs.num_queries);
      load_terms(buffer ^ 1, i0 + kQueries);
    }
    cuda::cp_async_commit();
    float s[R][N][4], dp[R][N][4];
    multiply_rows<T, D, R, N>(s, k_tile, own, a.scale.flip, q_tile);
    multiply_rows<T, D, R, N>(dp, v_tile, own, 0, grad_tile);
    differentiate(s, dp, pairs, a.scale.exponent, PairTile<true>{sample, head, i0, j0}, own,
                  pairs.hides_any(i0, j0 + own + 16 * R), [&](int, int n, int e) {
                    const int i = 8 * n + lane % 4 * 2 + e % 2;
                    return float2{bases[buffer][i], deltas[buffer][i]};
                  });
    unsigned p[R][N / 2][4], ds[R][N / 2][4];
    round_to_left<T>(p, s);
    round_to_left<T>(ds, dp);
    if (a.grad_v.data != nullptr) accumulate<T, D, R, N>(sums_v, p, grad_tile);
    __syncthreads();  // everyone is done with the gradients
    if (!is_last) load_rows<D, kQueries>(grad_tile, a.grad_out, grad, i0 + kQueries, pairs.num_queries);
    cuda::cp_async_commit();
    if (a.grad_k.data != nullptr) accumulate<T, D, R, N>(sums_k, ds, q_tile);
    T* const done = q_tile;
    q_tile = next_q_tile, next_q_tile = done, buffer ^= 1;
  }
  cuda::cp_async_wait<0>();
  __syncthreads();  // without queries, the keys were still on their way into the tiles that now take the results
  const SameFactor<R> factor_k(float(pairs.scale)), factor_v(float(pairs.kept));
  if (a.grad_k.data != nullptr)
    store_rows<D, R>(a.grad_k, a.grad_k.rows(sample, head_of_sample), j0, pairs.num_keys, k_tile, sums_k, factor_k.values);
  if (a.grad_v.data != nullptr)
    store_rows<D, R>(a.grad_v, a.grad_v.rows(sample, head_of_sample), j0, pairs.num_keys, v_tile, sums_v, factor_v.values);
}

// How a head dim is cut: R groups of 16 rows a warp and the length of the tiles it visits.
template <class T, int D, int R, int kVisited>
void launch_backward(Cuda device, const AttentionBackward& k) {
  constexpr int kOwned = kWarps * 16 * R;
  const BackwardArguments<T> arguments{heads_of<const T>(k.q),
                                       heads_of<const T>(k.k),
                                       heads_of<const T>(k.v),
                                       heads_of<const T>(k.grad_out),
                                       heads_of<T>(k.out),
                                       heads_of<T>(k.grad_k),
                                       heads_of<T>(k.grad_v),
                                       cuda::data_of<float>(k.lse),
                                       cuda::data_of<float>(k.scratch),
                                       pairs_of(k),
                                       scale_parts(k.scale)};
  run_delta(device, k);
  const std::int64_t num_heads = k.q.dim(0) * k.q.dim(2);
  const std::size_t shared_bytes = sizeof(T) * D * (2 * kOwned + 3 * kVisited);
  if (k.out.has_bytes()) {
    cuda::launch(k.name, query_gradient_kernel<T, D, R, kVisited>,
                 {.grid = dim3(unsigned(num_heads * cuda::ceil_div(k.q.dim(1), kOwned))),
                  .block = dim3(kThreads),
                  .shared_bytes = shared_bytes},
                 device, arguments);
  }
  if (k.grad_k.has_bytes() || k.grad_v.has_bytes()) {
    cuda::launch(k.name, key_gradient_kernel<T, D, R, kVisited>,
                 {.grid = dim3(unsigned(num_heads * cuda::ceil_div(k.k.dim(1), kOwned))),
                  .block = dim3(kThreads),
                  .shared_bytes = shared_bytes},
                 device, arguments);
  }
}

template <class T>
void dispatch_backward(Cuda device, const AttentionBackward& k) {
  switch (k.q.dim(3)) {
    case 32: return launch_backward<T, 32, 1, 64>(device, k);
    case 64: return launch_backward<T, 64, 1, 64>(device, k);
    case 80: return launch_backward<T, 80, 1, 32>(device, k);
    case 96: return launch_backward<T, 96, 1, 32>(device, k);
    case 128: return launch_backward<T, 128, 1, 32>(device, k);
    default: return run_generic(device, k);
  }
}

}  // namespace attention_kernels

void run(Cuda device, const AttentionBackward& k) {
  using namespace attention_kernels;
  switch (k.q.dtype()) {
    case DType::f16: return dispatch_backward<cuda::half>(device, k);
    case DType::bf16: return dispatch_backward<cuda::bfloat>(device, k);
    default: return run_generic(device, k);
  }
}

}  // namespace refrain
