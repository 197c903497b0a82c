// Tiles of 16-bit products. A tile's sums over the whole of k are f32, in a buffer of the thread's own (or in an f32 C);
// what is beyond the product is done when they are complete, and each element is rounded once.
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#include <algorithm>
#include <vector>

namespace refrain::detail {

namespace {

// Of a step of k whose operands are widened for a library: 288 KiB of A and 576 KiB of B.
constexpr std::int64_t kWideDepth = 384;
constexpr std::int64_t kWideRows = 192;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A block of op(X), rows x cols from row, col on, widened into `to`; transposed like X.
template <class S>
GemmOperand<float> widened(const GemmOperand<S>& x, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols, std::vector<float>& to) {
  const S* from = element(x, row, col);
  const std::int64_t lines = x.transposed ? cols : rows, width = x.transposed ? rows : cols;
  for (std::int64_t i = 0; i < lines; ++i) {
    simd::copy(from + i * x.ld, to.data() + i * width, width);
  }
  return {to.data(), width, x.transposed};
}

// A stretch of a bias; null for none.
template <class S>
const float* widened(const GemmBias<S>& bias, Range range, float* buffer) {
  if (bias.wide()) return bias.wide() + range.begin;
  if (!bias.narrow()) return nullptr;
  simd::copy(bias.narrow() + range.begin, buffer, range.size());
  return buffer;
}

// The sums by oneDNN or Eigen, on f32 blocks of the operands.
template <class S, class C>
void library_sums(const GemmArgs<S, C>& args, Range i, Range j, Range p, float* sums, std::int64_t ld) {
  struct Blocks {
    std::vector<float> a = std::vector<float>(std::size_t(kWideRows * kWideDepth));
    std::vector<float> b = std::vector<float>(std::size_t(kWideDepth * kMaxTileCols));
  };
  thread_local Blocks blocks;
  const std::int64_t depth = ceil_div(p.size(), ceil_div(p.size(), kWideDepth));
  for (std::int64_t begin = p.begin; begin < p.end; begin += depth) {
    const std::int64_t k = std::min(depth, p.end - begin);
    const GemmArgs<float> block{.m = i.size(), .n = j.size(), .k = k,
                                .a = widened(args.a, i.begin, begin, i.size(), k, blocks.a),
                                .b = widened(args.b, begin, j.begin, k, j.size(), blocks.b),
                                .c = sums, .ldc = ld, .split_k = args.split_k, .engine = args.engine};
    library_block(block, {0, block.m}, {0, block.n}, {0, k}, begin == p.begin ? 0.0f : 1.0f, sums, ld);
  }
}

}  // namespace

template <class S, class C>
void half_tile(const GemmArgs<S, C>& args, Range i, Range j, Range p, float* partial) {
  struct Sums {
    std::vector<float> values = std::vector<float>(std::size_t(kMaxTileSums));
  };
  thread_local Sums buffer;
  float* sums = buffer.values.data();
  const auto multiply = [&](const auto& finish) {
    const std::int64_t ld = args.engine == GemmEngine::amx ? ceil_div(j.size(), 32) * 32 : j.size();
    TileCall<S> call = block_of(args, i, j, p, 0.0f, sums, ld);
    call.alpha = 1;
    if (args.alpha == 0 || args.k == 0) {
      std::fill_n(sums, i.size() * ld, 0.0f);
    } else if (args.engine == GemmEngine::builtin) {
      builtin_tile(call, nullptr);
    } else if (args.engine == GemmEngine::amx) {
      if constexpr (std::is_same_v<S, bf16>) return amx_tile(call, finish);
    } else {
      library_sums(args, i, j, p, sums, ld);
    }
    finish_tile(finish, sums, ld, i.size(), j.size());
  };

  if (partial) {
    multiply(Finish<float>{.alpha = args.alpha, .beta = 0, .bias = nullptr, .row_bias = nullptr, .activation = Activation::none,
                           .c = partial + i.begin * args.n + j.begin, .pre = nullptr, .ldc = args.n});
  } else {
    float bias[kMaxTileCols], row_bias[kMaxTileRows];
    const std::int64_t at = i.begin * args.ldc + j.begin;
    multiply(Finish<C>{.alpha = args.alpha, .beta = args.beta, .bias = widened(args.bias, j, bias),
                       .row_bias = widened(args.row_bias, i, row_bias), .activation = args.activation,
                       .c = args.c + at, .pre = args.pre_activation ? args.pre_activation + at : nullptr, .ldc = args.ldc});
  }
  if (args.a_row_sums && j.begin == 0) {
    const S* columns = element(args.a, i.begin, p.begin);
    if (partial) column_sums(columns, args.a.ld, p.size(), i.size(), partial + args.m * args.n + i.begin);
    else column_sums(columns, args.a.ld, p.size(), i.size(), args.a_row_sums + i.begin);
  }
}

template void half_tile(const GemmArgs<f16>&, Range, Range, Range, float*);
template void half_tile(const GemmArgs<bf16>&, Range, Range, Range, float*);
template void half_tile(const GemmArgs<f16, float>&, Range, Range, Range, float*);
template void half_tile(const GemmArgs<bf16, float>&, Range, Range, Range, float*);

}  // namespace refrain::detail
