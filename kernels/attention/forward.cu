// Attention forward on tensor cores, for 16-bit types and the usual head dims; others go to generic_forward.cu.
//
// The scores of a block's queries are made a tile of keys at a time and never leave the chip: softmax needs only each query's
// maximum m and sum l = Σ exp(s - m) so far, and when a tile raises m, what was summed before is multiplied with
// exp(m_old - m_new) (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and Staats,
// "Self-attention does not need O(n²) memory", 2021; Dao et al., "FlashAttention", 2022). Memory traffic is q, k, v and out,
// with k and v read once a block of queries, mostly from the second-level cache.
//
// A warp owns 16·R queries for all keys, so no warp waits for another's sums. Keys of the next tile are copied to shared memory
// while probabilities are multiplied with values, values while scores are made. Scores, maxima and sums are f32; probabilities
// are rounded to 16 bits for the product with the values alone, not for their sum. Tiles beyond the causal diagonal, and those
// of padding at the end, are not visited; masks and dropout are bits (fragment_masks.cuh), asked for at run time, so that a
// head dim is one kernel.
#include <refrain/kernels/attention/fragment_masks.cuh>

namespace refrain {

namespace attention_kernels {

template <class T>
struct ForwardArguments {
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;  // [B, H, Tq] or null
  Pairs pairs;
  ScaleParts scale;
};

// Running statistics of a thread's rows: the largest score, and the thread's share of the sum of probabilities.
template <int R>
struct OnlineSoftmax {
  float top[R][2], sum[R][2];

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[r][h] = -INFINITY, sum[r][h] = 0;
  }

  // Scores become probabilities times l; `out`, the sums so far, are brought to the new maximum.
  template <int N, int M>
  __device__ __forceinline__ void update(float (&s)[R][N][4], float (&out)[R][M][4], float exponent) {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = top[r][h];
#pragma unroll
        for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(cuda::kAllLanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(cuda::kAllLanes, largest, 2));
        // While a query has seen only hidden keys, -inf - 0 keeps their probability 0.
        const float base = largest == -INFINITY ? 0.f : largest * exponent;
        const float rescale = cuda::exp2_approximate(__fmaf_rn(top[r][h], exponent, -base));
        top[r][h] = largest;
        float share = sum[r][h] * rescale;
#pragma unroll
        for (int m = 0; m < M; ++m) out[r][m][2 * h] *= rescale, out[r][m][2 * h + 1] *= rescale;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[r][n][e] = cuda::exp2_approximate(__fmaf_rn(s[r][n][e], exponent, -base));
            share += s[r][n][e];
          }
        sum[r][h] = share;
      }
  }
};

template <class T, int D, int R, int kKeys>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ForwardArguments<T> a) {
  constexpr int kQueries = kWarps * 16 * R, N = kKeys / 8;
  REFRAIN_DYNAMIC_SHARED(T, q_tile);
  T *const k_tile = q_tile + kQueries * D, *const v_tile = k_tile + kKeys * D;
  const Pairs& pairs = a.pairs;
  // Blocks of one head are neighbours, those with the most keys first.
  const int num_tiles = (pairs.num_queries + kQueries - 1) / kQueries;
  const int i0 = (num_tiles - 1 - int(blockIdx.x) % num_tiles) * kQueries;
  const std::int64_t head = blockIdx.x / num_tiles;
  const int sample = int(head / pairs.num_heads), head_of_sample = int(head % pairs.num_heads);
  const T *const k = a.k.rows(sample, head_of_sample), *const v = a.v.rows(sample, head_of_sample);
  const int own = warp_of_thread() * 16 * R, lane = lane_of_thread();
  const int end = end_of_visible_keys<kThreads>(pairs, sample, 0, pairs.end_of_keys(i0 + kQueries));

  float out[R][D / 8][4] = {};
  OnlineSoftmax<R> softmax;
  load_rows<D, kQueries>(q_tile, a.q, a.q.rows(sample, head_of_sample), i0, pairs.num_queries);
  if (end > 0) load_rows<D, kKeys>(k_tile, a.k, k, 0, pairs.num_keys);
  cuda::cp_async_commit();
  for (int j0 = 0; j0 < end; j0 += kKeys) {
    cuda::cp_async_wait<0>();
    __syncthreads();  // keys have arrived, and everyone is done with the values of the tile before
    load_rows<D, kKeys>(v_tile, a.v, v, j0, pairs.num_keys);
    cuda::cp_async_commit();

    float s[R][N][4];
    multiply_rows<T, D, R, N>(s, q_tile, own, a.scale.flip, k_tile);
    const PairTile<false> tile{sample, head, i0, j0};
    if (pairs.hides_any(i0 + own, j0 + kKeys)) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const unsigned visible = visible_bits<N>(pairs, tile, own + 16 * r);
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) {
          if (!(visible >> i & 1u)) s[r][i / 4][i % 4] = -INFINITY;
        }
      }
    }
    softmax.update(s, out, a.scale.exponent);
    if (pairs.has_dropout) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const unsigned kept = kept_bits<N>(pairs, tile, own + 16 * r);
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) {
          if (!(kept >> i & 1u)) s[r][i / 4][i % 4] = 0;
        }
      }
    }
    unsigned p[R][N / 2][4];
    round_to_left<T>(p, s);

    cuda::cp_async_wait<0>();
    __syncthreads();  // values have arrived, and everyone is done with the keys
    if (j0 + kKeys < end) load_rows<D, kKeys>(k_tile, a.k, k, j0 + kKeys, pairs.num_keys);
    cuda::cp_async_commit();
    accumulate<T, D, R, N>(out, p, v_tile);
  }
  cuda::cp_async_wait<0>();
  __syncthreads();  // without keys, the queries were still on their way into the tile that now takes the results

  float factor[R][2];
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = softmax.sum[r][h];
      sum += __shfl_xor_sync(cuda::kAllLanes, sum, 1);
      sum += __shfl_xor_sync(cuda::kAllLanes, sum, 2);
      factor[r][h] = sum == 0 ? 0.f : float(pairs.kept) / sum;
      const int query = i0 + own + 16 * r + 8 * h + lane / 4;
      if (a.lse != nullptr && lane % 4 == 0 && query < pairs.num_queries)
        a.lse[head * pairs.num_queries + query] = sum == 0 ? -INFINITY : softmax.top[r][h] * a.scale.magnitude + logf(sum);
    }
  if (a.out.data != nullptr)
    store_rows<D, R>(a.out, a.out.rows(sample, head_of_sample), i0, pairs.num_queries, q_tile, out, factor);
}

template <class T, int D, int R, int kKeys>
void launch_forward(Cuda device, const AttentionForward& k) {
  constexpr int kQueries = kWarps * 16 * R;
  const ForwardArguments<T> arguments{heads_of<const T>(k.q),
                                      heads_of<const T>(k.k),
                                      heads_of<const T>(k.v),
                                      heads_of<T>(k.out),
                                      k.lse.has_bytes() ? cuda::data_of<float>(k.lse) : nullptr,
                                      pairs_of(k),
                                      scale_parts(k.scale)};
  const std::int64_t blocks = k.q.dim(0) * k.q.dim(2) * cuda::ceil_div(k.q.dim(1), kQueries);
  cuda::launch(k.name, forward_kernel<T, D, R, kKeys>,
               {.grid = dim3(unsigned(blocks)), .block = dim3(kThreads), .shared_bytes = sizeof(T) * D * (kQueries + 2 * kKeys)},
               device, arguments);
}

template <class T>
void dispatch_forward(Cuda device, const AttentionForward& k) {
  switch (k.q.dim(3)) {
    case 32: return launch_forward<T, 32, 2, 64>(device, k);
    case 64: return launch_forward<T, 64, 2, 64>(device, k);
    case 80: return launch_forward<T, 80, 2, 32>(device, k);
    case 96: return launch_forward<T, 96, 2, 32>(device, k);
    case 128: return launch_forward<T, 128, 1, 64>(device, k);
    default: return run_generic(device, k);
  }
}

}  // namespace attention_kernels

void run(Cuda device, const AttentionForward& k) {
  using namespace attention_kernels;
  if (k.q.numel() == 0 || (!k.out.has_bytes() && !k.lse.has_bytes())) return;
  switch (k.q.dtype()) {
    case DType::f16: return dispatch_forward<cuda::half>(device, k);
    case DType::bf16: return dispatch_forward<cuda::bfloat>(device, k);
    default: return run_generic(device, k);
  }
}

}  // namespace refrain
