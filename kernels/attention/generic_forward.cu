// Attention forward without tensor cores: the online softmax of forward.cu over the tiles of generic.cuh.
#include <refrain/kernels/attention/generic.cuh>

namespace refrain::attention_kernels {

namespace generic {

template <class S>
struct ForwardArguments {
  Heads<const S> q, k, v;
  Heads<S> out;
  cuda::accumulator<S>* lse;  // [B, H, Tq] or null
  Pairs pairs;
};

// Over the 16 threads of a row.
template <class Op, class T>
__device__ __forceinline__ T reduce_row(T value, Op op) {
#pragma unroll
  for (int distance = kEdge / 2; distance > 0; distance /= 2)
    value = op(value, __shfl_xor_sync(cuda::kAllLanes, value, distance));
  return value;
}

template <class S, class Tile>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const ForwardArguments<S> a) {
  using T = typename Tile::T;
  constexpr int kMicro = Tile::kMicro;
  REFRAIN_DYNAMIC_SHARED(Tile, shared);
  const Pairs& pairs = a.pairs;
  const int width = pairs.head_dim, x = x_of_thread(), y = y_of_thread();
  const Place place(pairs, pairs.num_queries, Tile::kSide);
  const int i0 = place.first, end = end_of_visible_keys<kThreads>(pairs, place.sample, 0, pairs.end_of_keys(i0 + Tile::kSide));
  const Rows<S> q = rows_of(a.q, place.sample, place.head_of_sample, pairs.num_queries);
  const Rows<S> k = rows_of(a.k, place.sample, place.head_of_sample, pairs.num_keys);
  const Rows<S> v = rows_of(a.v, place.sample, place.head_of_sample, pairs.num_keys);

  typename Tile::Results out = {};
  T top[kMicro], sum[kMicro];
#pragma unroll
  for (int i = 0; i < kMicro; ++i) top[i] = -INFINITY, sum[i] = 0;
  for (int j0 = 0; j0 < end; j0 += Tile::kSide) {
    typename Tile::Scores s;
    multiply_rows(s, *shared, q, i0, T(pairs.scale), k, j0, width);
    const bool hides_any = pairs.hides_any(i0, j0 + Tile::kSide);
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int query = i0 + y + kEdge * i;
      T largest = top[i];
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        const int key = j0 + x + kEdge * j;
        if (hides_any && !pairs.is_visible(place.sample, query, key)) s[i][j] = -INFINITY;
        largest = max(largest, s[i][j]);
      }
      largest = reduce_row(largest, [](T one, T other) { return max(one, other); });
      // While a query has seen only hidden keys, -inf - 0 keeps their probability 0.
      const T base = largest == T(-INFINITY) ? T(0) : largest;
      const T rescale = cuda::math::exp_nonpositive(top[i] - base);
      top[i] = largest;
      T share = 0;
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        s[i][j] = cuda::math::exp_nonpositive(s[i][j] - base);
        share += s[i][j];
        s[i][j] *= keep_factor<T>(pairs, place.head, query, j0 + x + kEdge * j);
      }
      sum[i] = sum[i] * rescale + reduce_row(share, cuda::Add{});
#pragma unroll
      for (T& value : out[i]) value *= rescale;
    }
    accumulate(out, *shared, s, v, j0, width);
  }

  T factor[kMicro];
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int query = i0 + y + kEdge * i;
    factor[i] = sum[i] == 0 ? T(0) : T(1) / sum[i];
    if (a.lse != nullptr && x == 0 && query < pairs.num_queries)
      a.lse[place.head * pairs.num_queries + query] = sum[i] == 0 ? T(-INFINITY) : top[i] + log(sum[i]);
  }
  if (a.out.data != nullptr)
    store_results<Tile>(a.out, a.out.rows(place.sample, place.head_of_sample), i0, pairs.num_queries, width, out, factor);
}

}  // namespace generic

void run_generic(Cuda device, const AttentionForward& k) {
  generic::dispatch_tiles(k.q.dtype(), k.q.dim(3), k.name, [&]<class S, class Tile>(S, Tile*) {
    const generic::ForwardArguments<S> arguments{heads_of<const S>(k.q),
                                                 heads_of<const S>(k.k),
                                                 heads_of<const S>(k.v),
                                                 heads_of<S>(k.out),
                                                 k.lse.has_bytes() ? cuda::data_of<cuda::accumulator<S>>(k.lse) : nullptr,
                                                 pairs_of(k)};
    const std::int64_t blocks = k.q.dim(0) * k.q.dim(2) * cuda::ceil_div(k.q.dim(1), Tile::kSide);
    cuda::launch(k.name, generic::forward_kernel<S, Tile>,
                 {.grid = dim3(unsigned(blocks)), .block = dim3(generic::kThreads), .shared_bytes = sizeof(Tile)}, device,
                 arguments);
  });
}

}  // namespace refrain::attention_kernels
