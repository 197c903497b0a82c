// Validation, cost and the plan of reductions.
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/sum_plan.h>

namespace refrain {

namespace {

// Elements along a row, and rows below each other, that go into one partial sum in the accumulator type.
constexpr std::int64_t kRowBlock = 4096, kColumnBlock = 256, kSquareBlock = 8192;

}  // namespace

SumPlan::SumPlan(const Shape& x, const Shape& out) {
  // Merge neighbours of the same kind; extents of 1 belong to either.
  std::array<Outer, kMaxDims> groups{};
  int count = 0;
  for (int i = 0; i < x.size(); ++i) {
    const int at = i - (x.size() - out.size());
    if (x[i] == 1) continue;
    const bool is_reduced = at < 0 || out[at] != x[i];
    if (count > 0 && groups[std::size_t(count - 1)].is_reduced == is_reduced)
      groups[std::size_t(count - 1)].extent *= x[i];
    else
      groups[std::size_t(count++)] = {x[i], is_reduced};
  }
  if (count > 0 && !groups[std::size_t(count - 1)].is_reduced) columns = groups[std::size_t(--count)].extent;
  if (count > 0) reduced = groups[std::size_t(--count)].extent;
  for (int i = 0; i < count; ++i) {
    outer[std::size_t(num_outer++)] = groups[std::size_t(i)];
    outer_count *= groups[std::size_t(i)].extent;
    if (!groups[std::size_t(i)].is_reduced) outer_kept *= groups[std::size_t(i)].extent;
  }
  block = columns == 1 ? kRowBlock : kColumnBlock;
  num_blocks = std::max<std::int64_t>(1, (reduced + block - 1) / block);
}

std::int64_t sum_scratch_numel(const Shape& x, const Shape& out) { return SumPlan(x, out).scratch_numel(); }

void validate(const Sum& k) {
  check_floating(k.name, "x", k.x);
  check_contiguous(k.name, "x", k.x);
  const DType from = k.x.dtype(), to = k.out.dtype();
  check(to == from || (from == DType::f32 && is_16_bit(to)) || (is_16_bit(from) && to == DType::f32), k.name, ": out of x's dtype ", from,
        ", or between f32 and a 16-bit type, expected, got ", to);
  check_contiguous(k.name, "out", k.out);
  bool fits = k.out.num_dims() <= k.x.num_dims();
  for (int i = 1; fits && i <= k.out.num_dims(); ++i) fits = k.out.dim(-i) == 1 || k.out.dim(-i) == k.x.dim(-i);
  check(fits, k.name, ": out of shape ", k.out.shape(), " does not broadcast to ", k.x.shape());
  if (const std::int64_t scratch = sum_scratch_numel(k.x.shape(), k.out.shape())) {
    check(k.scratch.defined(), k.name, ": scratch must be [", scratch, "], got none");
    check_shape(k.name, "scratch", k.scratch, {scratch});
    check_dtype(k.name, "scratch", k.scratch, accumulator_dtype(k.x.dtype()));
  }
}
Cost cost(const Sum& k) { return {double(k.x.numel()), k.x.bytes() + k.out.bytes()}; }

std::int64_t squared_norm_scratch_numel(std::int64_t numel) { return std::max<std::int64_t>(1, (numel + kSquareBlock - 1) / kSquareBlock); }

void validate(const SquaredNorm& k) {
  check_floating(k.name, "x", k.x);
  check_contiguous(k.name, "x", k.x);
  check_dtype(k.name, "out", k.out, DType::f64);
  check(k.out.numel() == 1, k.name, ": out must have one element, got ", k.out.shape());
  check_dtype(k.name, "scratch", k.scratch, DType::f64);
  check_shape(k.name, "scratch", k.scratch, {squared_norm_scratch_numel(k.x.numel())});
  if (!k.guard) return;
  check_dtype(k.name, "guard", k.guard, DType::f64);
  check(k.guard.numel() == 1, k.name, ": guard must have one element, got ", k.guard.shape());
}
Cost cost(const SquaredNorm& k) { return {2 * double(k.x.numel()), k.x.bytes()}; }

std::int64_t squared_norms_scratch_numel(std::span<const In> x, DeviceKind target) {
  // A launch on CUDA is worth 64 KiB; the CPU sums one tensor after the other.
  constexpr std::int64_t kLaunch = 8192;
  std::int64_t most = 0, all = 0;
  for (const In& each : x) {
    const std::int64_t numel = squared_norm_scratch_numel(each.numel());
    most = std::max(most, numel);
    all += numel;
  }
  return target == DeviceKind::cuda ? std::max(most, std::min(all, kLaunch)) : most;
}

void validate(const SquaredNorms& k) {
  check(!k.x.empty(), k.name, ": there are no tensors");
  for (const In& each : k.x) {
    check_floating(k.name, "x", each);
    check_contiguous(k.name, "x", each);
  }
  check_dtype(k.name, "out", k.out, DType::f64);
  check_shape(k.name, "out", k.out, {std::int64_t(k.x.size())});
  check_contiguous(k.name, "out", k.out);
  check_dtype(k.name, "scratch", k.scratch, DType::f64);
  check_shape(k.name, "scratch", k.scratch, {squared_norms_scratch_numel(k.x, k.out.target())});
}
Cost cost(const SquaredNorms& k) {
  Cost sum;
  for (const In& each : k.x) sum += {2 * double(each.numel()), each.bytes()};
  return sum;
}

void validate(const Max& k) {
  check_floating(k.name, "x", k.x);
  check_contiguous(k.name, "x", k.x);
  check(k.dim >= 0 && k.dim < k.x.num_dims(), k.name, ": dim ", k.dim, " is out of range for ", k.x.shape());
  check(k.x.dim(k.dim) > 0, k.name, ": no elements along dim ", k.dim, " of ", k.x.shape());
  Shape shape = k.x.shape();
  shape.erase(k.dim);
  check_shape(k.name, "out", k.out, shape);
  check_dtype(k.name, "out", k.out, k.x.dtype());
  check_contiguous(k.name, "out", k.out);
  if (k.indices) {
    check_shape(k.name, "indices", k.indices, shape);
    check_dtype(k.name, "indices", k.indices, DType::i64);
    check_contiguous(k.name, "indices", k.indices);
  }
}
Cost cost(const Max& k) { return {double(k.x.numel()), k.x.bytes() + k.out.bytes() + (k.indices ? k.indices.bytes() : 0)}; }

void validate(const MaxBackward& k) {
  check_floating(k.name, "grad_out", k.grad_out);
  check(k.dim >= 0 && k.dim < k.out.num_dims(), k.name, ": dim ", k.dim, " is out of range for ", k.out.shape());
  Shape shape = k.out.shape();
  shape.erase(k.dim);
  check_shape(k.name, "grad_out", k.grad_out, shape);
  check_shape(k.name, "indices", k.indices, shape);
  check_dtype(k.name, "indices", k.indices, DType::i64);
  check_dtype(k.name, "out", k.out, k.grad_out.dtype());
  for (const TensorArg* arg :
       {static_cast<const TensorArg*>(&k.grad_out), static_cast<const TensorArg*>(&k.indices), static_cast<const TensorArg*>(&k.out)}) {
    check_contiguous(k.name, "an argument", *arg);
  }
}
Cost cost(const MaxBackward& k) { return {0, k.grad_out.bytes() + k.indices.bytes() + k.out.bytes()}; }

}  // namespace refrain
