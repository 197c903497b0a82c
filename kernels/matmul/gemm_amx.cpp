// bf16 products by the processor's matrix instructions (Intel AMX): tiles of 16 x 16 f32 sums, 32 of k at a time. Compiled
// where the build's target has them, used where the processor has them and the system grants their registers.
//
// Each sum goes through k in one order, whatever the tile and the rows beside it: blocks of 32, in each of them the even
// and the odd products apart; missing rows, columns and ends of k are zeros. The instructions round to nearest and flush
// subnormals, of bf16 and of sums: an absolute error below k 2^-126, as all kernels here make in parallel work.
//
// AVX512-BF16's dot products are not used: on Sapphire Rapids they do half the multiply-adds a second of f32's FMA.
#include <refrain/kernels/matmul/gemm_engine.h>

#include <refrain/core/check.h>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define REFRAIN_HAS_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#endif

namespace refrain {

#ifdef REFRAIN_HAS_AMX

namespace {

constexpr std::int64_t kTile = 16;        // rows of a tile, and its columns of f32
constexpr std::int64_t kBlock = 2 * kTile;  // rows and columns that are multiplied together; and of k
constexpr std::int64_t kTileElements = kTile * kBlock;  // bf16 of a tile, 1 KiB
constexpr std::int64_t kMaxDepth = 512;   // of a step along k: 32 rows of it fit the first-level cache

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t unit) { return ceil_div(a, unit) * unit; }

// Linux hands out the tile registers on request, once for a process.
bool request_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTiles) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// All eight tiles of full size. Released at the end: the system need not save them when it switches threads.
class TileScope {
 public:
  TileScope() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static const Config config;
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

struct Free {
  void operator()(bf16* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

// Packed operands of a step; the thread's own.
struct Buffers {
  static std::unique_ptr<bf16, Free> make(std::int64_t count) {
    return std::unique_ptr<bf16, Free>(new (std::align_val_t(64)) bf16[std::size_t(count)]);
  }
  std::unique_ptr<bf16, Free> a = make(kBlock * kMaxDepth), b = make(kMaxDepth * detail::kMaxTileCols);
};

__mmask32 first(std::int64_t n) { return n >= 32 ? ~__mmask32(0) : n <= 0 ? 0 : (__mmask32(1) << n) - 1; }

// The transpose of 16 x 16 numbers of 32 bits.
void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Lines of 32 neighbours, 16 of them `ld` apart, zeros outside lines x width.
void load_lines(const bf16* from, std::int64_t ld, std::int64_t lines, std::int64_t width, __m512i (&r)[16]) {
  const __mmask32 mask = first(width);
  for (std::int64_t i = 0; i < kTile; ++i) r[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, from + i * ld) : _mm512_setzero_si512();
}

// 16 pairs of lines, zeros outside lines x width (at most 16): element i of pair r holds elements i of lines 2r, 2r + 1.
void load_pairs(const bf16* from, std::int64_t ld, std::int64_t lines, std::int64_t width, __m512i (&r)[16]) {
  const __mmask16 mask = __mmask16(first(width));
  const auto line = [&](std::int64_t i) {
    return _mm512_cvtepu16_epi32(i < lines ? _mm256_maskz_loadu_epi16(mask, from + i * ld) : _mm256_setzero_si256());
  };
  for (std::int64_t i = 0; i < kTile; ++i) r[i] = _mm512_or_si512(line(2 * i), _mm512_slli_epi32(line(2 * i + 1), 16));
}

void store_tile(const __m512i (&r)[16], bf16* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kBlock, r[i]);
}

// A tile of op(A): rows x 32 of k.
void pack_a(const GemmOperand<bf16>& a, const bf16* from, std::int64_t rows, std::int64_t k, bf16* to) {
  __m512i r[16];
  if (a.transposed) {
    load_pairs(from, a.ld, k, rows, r);
    transpose(r);
  } else {
    load_lines(from, a.ld, rows, k, r);
  }
  store_tile(r, to);
}

// A tile of op(B): 16 pairs along k x 16 columns, the two of a pair side by side.
void pack_b(const GemmOperand<bf16>& b, const bf16* from, std::int64_t k, std::int64_t cols, bf16* to) {
  __m512i r[16];
  if (b.transposed) {
    load_lines(from, b.ld, cols, k, r);
    transpose(r);
  } else {
    load_pairs(from, b.ld, k, cols, r);
  }
  store_tile(r, to);
}

// 32 x 32 sums += A B over `blocks` of k. Tiles of A are a_step elements apart along k, its second rows a_down further;
// tiles of B lie pair by pair.
void multiply(std::int64_t blocks, const bf16* a, std::int64_t a_ld, std::int64_t a_step, std::int64_t a_down, const bf16* b, bool is_first, float* sums,
              std::int64_t ld) {
  const std::size_t sum_bytes = std::size_t(ld) * sizeof(float), a_bytes = std::size_t(a_ld) * sizeof(bf16);
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, sum_bytes);
    _tile_loadd(1, sums + kTile, sum_bytes);
    _tile_loadd(2, sums + kTile * ld, sum_bytes);
    _tile_loadd(3, sums + kTile * ld + kTile, sum_bytes);
  }
  for (std::int64_t p = 0; p < blocks; ++p) {
    _tile_loadd(6, b, kBlock * sizeof(bf16));
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(7, b + kTileElements, kBlock * sizeof(bf16));
    _tile_loadd(5, a + a_down, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += a_step;
    b += 2 * kTileElements;
  }
  _tile_stored(0, sums, sum_bytes);
  _tile_stored(1, sums + kTile, sum_bytes);
  _tile_stored(2, sums + kTile * ld, sum_bytes);
  _tile_stored(3, sums + kTile * ld + kTile, sum_bytes);
}

}  // namespace

bool has_amx() {
  static const bool is_granted = request_tiles();
  return is_granted;
}

template <class C>
void detail::amx_tile(const TileCall<bf16>& call, const Finish<C>& finish) {
  thread_local Buffers buffers;
  const TileScope tiles;
  const std::int64_t num_steps = ceil_div(call.k, kMaxDepth), depth = round_up(ceil_div(call.k, num_steps), kBlock);
  const std::int64_t panels = ceil_div(call.n, kBlock);
  for (std::int64_t begin = 0; begin < call.k; begin += depth) {
    const std::int64_t k = std::min(depth, call.k - begin), blocks = ceil_div(k, kBlock);
    const bool is_first = begin == 0, is_last = begin + depth >= call.k;
    for (std::int64_t j = 0; j < panels; ++j) {
      bf16* to = buffers.b.get() + j * blocks * 2 * kTileElements;
      for (std::int64_t p = 0; p < blocks; ++p) {
        for (std::int64_t half = 0; half < 2; ++half, to += kTileElements) {
          const std::int64_t col = j * kBlock + half * kTile, row = begin + p * kBlock;
          pack_b(call.b, element(call.b, row, col), call.k - row, std::min(kTile, call.n - col), to);
        }
      }
    }
    for (std::int64_t i = 0; i < call.m; i += kBlock) {
      const std::int64_t rows = std::min(kBlock, call.m - i);
      const bool is_packed = call.a.transposed || rows < kBlock || k % kBlock != 0;
      const bf16* a = element(call.a, i, begin);
      if (is_packed) {
        bf16* to = buffers.a.get();
        for (std::int64_t p = 0; p < blocks; ++p) {
          for (std::int64_t half = 0; half < 2; ++half, to += kTileElements) {
            const std::int64_t row = i + half * kTile, col = begin + p * kBlock;
            pack_a(call.a, element(call.a, row, col), std::min(kTile, call.m - row), call.k - col, to);
          }
        }
        a = buffers.a.get();
      }
      // A product of one step needs its sums only until they are finished.
      float* sums = call.c + (num_steps == 1 ? 0 : i * call.ldc);
      for (std::int64_t j = 0; j < panels; ++j) {
        multiply(blocks, a, is_packed ? kBlock : call.a.ld, is_packed ? 2 * kTileElements : kBlock, is_packed ? kTileElements : kTile * call.a.ld,
                 buffers.b.get() + j * blocks * 2 * kTileElements, is_first, sums + j * kBlock, call.ldc);
      }
      if (!is_last) continue;
      Finish<C> block = finish;
      block.c += i * finish.ldc;
      if (block.pre) block.pre += i * finish.ldc;
      if (block.row_bias) block.row_bias += i;
      finish_tile(block, sums, call.ldc, rows, call.n);
    }
  }
}

#else

bool has_amx() { return false; }

template <class C>
void detail::amx_tile(const TileCall<bf16>&, const Finish<C>&) {
  fail<InvalidArgument>("gemm: this build has no AMX");
}

#endif

template void detail::amx_tile(const TileCall<bf16>&, const Finish<bf16>&);
template void detail::amx_tile(const TileCall<bf16>&, const Finish<float>&);

}  // namespace refrain
