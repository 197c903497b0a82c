// Ranks' parts combined in rank order on CUDA: the CPU's bits, subnormals and NaN included.
#include <refrain/kernels/reduce/reduce_ranks.h>
#include <refrain/tests/cuda/layouts.h>

#include <limits>

using namespace refrain;

namespace {

Tensor hostile_values(const Shape& shape, DType dtype, std::uint64_t seed) {
  if (!is_floating(dtype)) {
    std::vector<std::int64_t> values;
    for (double v : random_values(numel_of(shape), seed)) values.push_back(std::int64_t(v * (dtype == DType::i64 ? 0x1p62 : 0x1p30)));
    return as(from_values(values, shape), dtype);
  }
  std::vector<double> values = random_values(numel_of(shape), seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 7 == 1) values[i] *= dtype == DType::f64 ? 0x1p-1021 : dtype == DType::f16 ? 0x1p-14 : 0x1p-125;  // many are subnormal
    if (i % 31 == 5) values[i] = 0;
    if (i % 31 == 6) values[i] = -0.0;
    if (i % 61 == 7) values[i] = std::numeric_limits<double>::infinity();
  }
  return tensor_of(values, shape, dtype);
}

std::vector<ReduceOp> ops_of(DType dtype) {
  if (dtype == DType::boolean) return {ReduceOp::max};
  if (!is_floating(dtype)) return {ReduceOp::sum, ReduceOp::max};
  return {ReduceOp::sum, ReduceOp::mean, ReduceOp::max};
}

// Infinities meet: what is no number has the same place, if not the same bits.
bool is_alike(const Tensor& got, const Tensor& expected) {
  if (same_bits(got, expected)) return true;
  const std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::isnan(a[i]) != std::isnan(b[i]) || (!std::isnan(a[i]) && (a[i] != b[i] || std::signbit(a[i]) != std::signbit(b[i])))) return false;
  return true;
}

}  // namespace

TEST_CASE("cuda reduce_ranks: the CPU's bits, in every dtype, for any number of ranks, place and alignment") {
  for (DType dtype : kAllDTypes) {
    for (const auto& [num_ranks, n] : {std::pair{1, 5}, {2, 1000}, {2, 0}, {3, 1}, {3, 4099}, {4, 64}, {7, 333}}) {
      const int rank = n % num_ranks;
      const Tensor own = hostile_values({n}, dtype, 1), others = hostile_values({num_ranks - 1, n}, dtype, 2);
      for (const ReduceOp op : ops_of(dtype)) {
        const Tensor expected = full({n}, 1, dtype);
        launch(ReduceRanks{.own = own, .others = others, .rank = rank, .op = op, .out = expected});
        for (const int layout : {0, 1, 3}) {  // aligned, misaligned, rows apart
          INFO(dtype << ", rank " << rank << " of " << num_ranks << ", " << n << " elements, op " << int(op) << ", " << kLayoutNames[layout]);
          const CudaGuarded out({n}, dtype, layout == 1);
          launch(ReduceRanks{.own = in_layout(own, layout == 1), .others = in_layout(others, layout), .rank = rank, .op = op, .out = out.tensor});
          CHECK(is_alike(on_cpu(out.tensor), expected));
          CHECK(out.is_intact());
        }
        const Tensor in_place = on_cuda(own);
        launch(ReduceRanks{.own = in_place, .others = on_cuda(others), .rank = rank, .op = op, .out = in_place});
        CHECK(is_alike(on_cpu(in_place), expected));
      }
    }
  }
}

TEST_CASE("cuda reduce_ranks: one rank's NaN is everybody's") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kFloats) {
    const Tensor own = on_cuda(tensor_of({nan, 1, 2}, {3}, dtype)), others = on_cuda(tensor_of({1, nan, 3}, {1, 3}, dtype));
    for (const ReduceOp op : ops_of(dtype)) {
      const Tensor out = poisoned({3}, dtype, cuda_device());
      launch(ReduceRanks{.own = own, .others = others, .rank = 0, .op = op, .out = out});
      const std::vector<double> values = out.to_vector<double>();
      CHECK(std::isnan(values[0]));
      CHECK(std::isnan(values[1]));
      CHECK(values[2] == (op == ReduceOp::sum ? 5 : op == ReduceOp::mean ? 2.5 : 3));
    }
  }
}
