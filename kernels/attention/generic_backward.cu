// Attention backward without tensor cores: as backward.cu, a kernel that owns queries and one that owns keys, over the tiles of
// generic.cuh. Also the sums of grad_out · out of each query that both backwards start from.
#include <refrain/kernels/attention/generic.cuh>

namespace refrain::attention_kernels {

namespace generic {

template <class S>
struct BackwardArguments {
  using T = cuda::accumulator<S>;
  Heads<const S> q, k, v, attended, grad_out;
  Heads<S> grad_q, grad_k, grad_v;
  const T* lse;        // [B, H, Tq]
  const float* delta;  // [B, H, Tq]
  Pairs pairs;
};

// grad_out · out of one query, by the lanes of a warp.
template <class S>
__device__ __forceinline__ cuda::accumulator<S> delta_of(const S* grad, const S* out, int width) {
  cuda::accumulator<S> sum = 0;
  for (int d = int(threadIdx.x) % cuda::kWarp; d < width; d += cuda::kWarp)
    sum = fused(cuda::widen(grad[d]), cuda::widen(out[d]), sum);
  return cuda::warp_reduce<cuda::Add>(sum);
}

template <class S>
__global__ void __launch_bounds__(kThreads) delta_kernel(Heads<const S> grad_out, Heads<const S> out, float* delta,
                                                         std::int64_t num_rows, int num_heads, int num_queries, int width) {
  const std::int64_t at = std::int64_t(blockIdx.x) * (kThreads / cuda::kWarp) + threadIdx.x / cuda::kWarp;
  if (at >= num_rows) return;
  const std::int64_t query = at % num_queries, head = at / num_queries % num_heads, sample = at / num_queries / num_heads;
  const float sum =
      delta_of(grad_out.rows(sample, head) + query * grad_out.row_step, out.rows(sample, head) + query * out.row_step, width);
  if (threadIdx.x % cuda::kWarp == 0) delta[at] = sum;
}

// What is known of a tile's queries. f64's delta does not fit into the scratch of f32 and is made again in every block.
template <class S, int kSide>
struct QueryTerms {
  using T = cuda::accumulator<S>;
  T log_sum[kSide], delta[kSide];

  __device__ __forceinline__ void load(const BackwardArguments<S>& a, const Place& place, int i0) {
    const int num_queries = a.pairs.num_queries;
    for (int i = int(threadIdx.x); i < kSide; i += kThreads) {
      const std::int64_t at = place.head * num_queries + i0 + i;
      const T value = i0 + i < num_queries ? a.lse[at] : T(0);
      log_sum[i] = value == T(-INFINITY) ? T(0) : value;  // a query without keys has only hidden scores
      if constexpr (!std::is_same_v<T, double>) delta[i] = i0 + i < num_queries ? a.delta[at] : T(0);
    }
    if constexpr (std::is_same_v<T, double>) {
      const S *grad = a.grad_out.rows(place.sample, place.head_of_sample),
              *out = a.attended.rows(place.sample, place.head_of_sample);
      for (int i = int(threadIdx.x) / cuda::kWarp; i < kSide; i += kThreads / cuda::kWarp) {
        T sum = 0;
        if (i0 + i < num_queries)
          sum = delta_of(grad + (i0 + i) * a.grad_out.row_step, out + (i0 + i) * a.attended.row_step, a.pairs.head_dim);
        if (threadIdx.x % cuda::kWarp == 0) delta[i] = sum;
      }
    }
  }
};

// s: scores → dropped-out probabilities; dp: dP → dS. kTransposed: rows are keys.
template <bool kTransposed, class Tile, class Terms>
__device__ __forceinline__ void differentiate(typename Tile::Scores& s, typename Tile::Scores& dp, const Pairs& pairs,
                                              const Place& place, const Terms& terms, int i0, int j0) {
  using T = typename Tile::T;
  const bool hides_any = pairs.hides_any(i0, j0 + Tile::kSide);
#pragma unroll
  for (int i = 0; i < Tile::kMicro; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kMicro; ++j) {
      const int row = y_of_thread() + kEdge * i, column = x_of_thread() + kEdge * j;
      const int at = kTransposed ? column : row, query = i0 + at, key = j0 + (kTransposed ? row : column);
      const bool is_visible = !hides_any || pairs.is_visible(place.sample, query, key);
      const T p = is_visible ? cuda::math::exp_nonpositive(s[i][j] - terms.log_sum[at]) : T(0);
      const T keep = keep_factor<T>(pairs, place.head, query, key);
      s[i][j] = p * keep;
      dp[i][j] = p * (dp[i][j] * keep - terms.delta[at]) * T(pairs.scale);
    }
}

template <class S, class Tile>
struct BackwardShared {
  Tile tile;
  QueryTerms<S, Tile::kSide> terms;
};

template <class S, class Tile>
__global__ void __launch_bounds__(kThreads, 1) query_gradient_kernel(const BackwardArguments<S> a) {
  using T = typename Tile::T;
  using Shared = BackwardShared<S, Tile>;
  REFRAIN_DYNAMIC_SHARED(Shared, shared);
  const Pairs& pairs = a.pairs;
  const int width = pairs.head_dim;
  const Place place(pairs, pairs.num_queries, Tile::kSide);
  const int i0 = place.first, end = end_of_visible_keys<kThreads>(pairs, place.sample, 0, pairs.end_of_keys(i0 + Tile::kSide));
  const Rows<S> q = rows_of(a.q, place.sample, place.head_of_sample, pairs.num_queries);
  const Rows<S> grad = rows_of(a.grad_out, place.sample, place.head_of_sample, pairs.num_queries);
  const Rows<S> k = rows_of(a.k, place.sample, place.head_of_sample, pairs.num_keys);
  const Rows<S> v = rows_of(a.v, place.sample, place.head_of_sample, pairs.num_keys);
  typename Tile::Results sums = {};
  shared->terms.load(a, place, i0);  // read after the products' barriers
  for (int j0 = 0; j0 < end; j0 += Tile::kSide) {
    typename Tile::Scores s, dp;
    multiply_rows(s, shared->tile, q, i0, T(pairs.scale), k, j0, width);
    multiply_rows(dp, shared->tile, grad, i0, T(1), v, j0, width);
    differentiate<false, Tile>(s, dp, pairs, place, shared->terms, i0, j0);
    accumulate(sums, shared->tile, dp, k, j0, width);
  }
  T factor[Tile::kMicro];
#pragma unroll
  for (T& each : factor) each = 1;
  store_results<Tile>(a.grad_q, a.grad_q.rows(place.sample, place.head_of_sample), i0, pairs.num_queries, width, sums, factor);
}

// kKeys, kValues: which of its two gradients it may make. f64, whose sums take two registers each, makes them one by one.
template <class S, class Tile, bool kKeys, bool kValues>
__global__ void __launch_bounds__(kThreads, 1) key_gradient_kernel(const BackwardArguments<S> a) {
  using T = typename Tile::T;
  using Shared = BackwardShared<S, Tile>;
  REFRAIN_DYNAMIC_SHARED(Shared, shared);
  const Pairs& pairs = a.pairs;
  const int width = pairs.head_dim;
  const Place place(pairs, pairs.num_keys, Tile::kSide);
  const int j0 = place.first;
  const Rows<S> q = rows_of(a.q, place.sample, place.head_of_sample, pairs.num_queries);
  const Rows<S> grad = rows_of(a.grad_out, place.sample, place.head_of_sample, pairs.num_queries);
  const Rows<S> k = rows_of(a.k, place.sample, place.head_of_sample, pairs.num_keys);
  const Rows<S> v = rows_of(a.v, place.sample, place.head_of_sample, pairs.num_keys);
  const bool is_hidden = end_of_visible_keys<kThreads>(pairs, place.sample, j0, min(j0 + Tile::kSide, pairs.num_keys)) == j0;
  typename Tile::Results sums_k = {}, sums_v = {};
  for (int i0 = is_hidden ? pairs.num_queries : pairs.first_query(j0); i0 < pairs.num_queries; i0 += Tile::kSide) {
    typename Tile::Scores s, dp;
    multiply_rows(s, shared->tile, k, j0, T(pairs.scale), q, i0, width);
    shared->terms.load(a, place, i0);  // everyone is past the terms before; read after the next product's barriers
    multiply_rows(dp, shared->tile, v, j0, T(1), grad, i0, width);
    differentiate<true, Tile>(s, dp, pairs, place, shared->terms, i0, j0);
    if (kValues && a.grad_v.data != nullptr) accumulate(sums_v, shared->tile, s, grad, i0, width);
    if (kKeys && a.grad_k.data != nullptr) accumulate(sums_k, shared->tile, dp, q, i0, width);
  }
  T factor[Tile::kMicro];
#pragma unroll
  for (T& each : factor) each = 1;
  if (kKeys && a.grad_k.data != nullptr)
    store_results<Tile>(a.grad_k, a.grad_k.rows(place.sample, place.head_of_sample), j0, pairs.num_keys, width, sums_k, factor);
  if (kValues && a.grad_v.data != nullptr)
    store_results<Tile>(a.grad_v, a.grad_v.rows(place.sample, place.head_of_sample), j0, pairs.num_keys, width, sums_v, factor);
}

}  // namespace generic

void run_delta(Cuda device, const AttentionBackward& k) {
  const std::int64_t num_rows = k.q.dim(0) * k.q.dim(2) * k.q.dim(1);
  cuda::dispatch_floating(k.q.dtype(), k.name, [&]<class S>(S) {
    if constexpr (!std::is_same_v<S, double>) {
      constexpr int kRows = generic::kThreads / cuda::kWarp;
      cuda::launch("attention_delta", generic::delta_kernel<S>,
                   {.grid = dim3(unsigned(cuda::ceil_div(num_rows, kRows))), .block = dim3(generic::kThreads)}, device,
                   heads_of<const S>(k.grad_out), heads_of<const S>(k.attended), cuda::data_of<float>(k.scratch), num_rows,
                   int(k.q.dim(2)), int(k.q.dim(1)), int(k.q.dim(3)));
    }
  });
}

void run_generic(Cuda device, const AttentionBackward& k) {
  run_delta(device, k);
  generic::dispatch_tiles(k.q.dtype(), k.q.dim(3), k.name, [&]<class S, class Tile>(S, Tile*) {
    const generic::BackwardArguments<S> arguments{heads_of<const S>(k.q),
                                                  heads_of<const S>(k.k),
                                                  heads_of<const S>(k.v),
                                                  heads_of<const S>(k.attended),
                                                  heads_of<const S>(k.grad_out),
                                                  heads_of<S>(k.out),
                                                  heads_of<S>(k.grad_k),
                                                  heads_of<S>(k.grad_v),
                                                  cuda::data_of<cuda::accumulator<S>>(k.lse),
                                                  cuda::data_of<float>(k.scratch),
                                                  pairs_of(k)};
    const std::int64_t num_heads = k.q.dim(0) * k.q.dim(2);
    const auto shape = [&](std::int64_t length) {
      return cuda::LaunchShape{.grid = dim3(unsigned(num_heads * cuda::ceil_div(length, Tile::kSide))),
                               .block = dim3(generic::kThreads),
                               .shared_bytes = sizeof(generic::BackwardShared<S, Tile>)};
    };
    if (k.out.has_bytes()) cuda::launch(k.name, generic::query_gradient_kernel<S, Tile>, shape(k.q.dim(1)), device, arguments);
    if constexpr (std::is_same_v<S, double>) {
      if (k.grad_k.has_bytes())
        cuda::launch(k.name, generic::key_gradient_kernel<S, Tile, true, false>, shape(k.k.dim(1)), device, arguments);
      if (k.grad_v.has_bytes())
        cuda::launch(k.name, generic::key_gradient_kernel<S, Tile, false, true>, shape(k.k.dim(1)), device, arguments);
    } else {
      if (k.grad_k.has_bytes() || k.grad_v.has_bytes())
        cuda::launch(k.name, generic::key_gradient_kernel<S, Tile, true, true>, shape(k.k.dim(1)), device, arguments);
    }
  });
}

}  // namespace refrain::attention_kernels
