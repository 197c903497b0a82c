#include <refrain/kernels/matmul/matmul.h>

#include <refrain/kernels/matmul/product_dtypes.h>

#include <algorithm>

namespace refrain {

namespace {

Shape batch_of(const TensorArg& t) { return Shape(std::span(t.shape().begin(), std::size_t(t.num_dims() - 2))); }

// The strides of t's batch dims as dims of a larger batch: 0 where it is repeated.
Strides batch_strides(const TensorArg& t, const Shape& batch) {
  Strides strides = Dims::filled(batch.size(), 0);
  const int own = t.num_dims() - 2;
  for (int i = 0; i < own; ++i) {
    if (t.dim(i) != 1) strides[batch.size() - own + i] = t.strides()[i];
  }
  return strides;
}

std::int64_t offset_of(std::int64_t index, const Shape& batch, const Strides& strides) {
  std::int64_t offset = 0;
  for (int i = batch.size() - 1; i >= 0; --i) {
    offset += index % batch[i] * strides[i];
    index /= batch[i];
  }
  return offset;
}

template <class S, class C>
void run_matmul(const Matmul& k) {
  const Shape batch = batch_of(k.out);
  const Strides a_batch = batch_strides(k.a, batch), b_batch = batch_strides(k.b, batch);
  const std::int64_t m = k.out.dim(-2), n = k.out.dim(-1);
  const GemmLayout a = *gemm_layout(k.a.shape(), k.a.strides()), b = *gemm_layout(k.b.shape(), k.b.strides());
  gemm_batch<S, C>(numel_of(batch), [&](std::int64_t i) {
    return GemmArgs<S, C>{.m = m, .n = n, .k = k.a.dim(-1),
                          .a = {k.a.data<S>() + offset_of(i, batch, a_batch), a.ld, a.transposed},
                          .b = {k.b.data<S>() + offset_of(i, batch, b_batch), b.ld, b.transposed},
                          .c = k.out.data<C>() + i * m * n, .ldc = n,
                          .alpha = accumulator_t<S>(k.alpha), .beta = accumulator_t<S>(k.beta), .engine = k.engine};
  });
}

}  // namespace

std::optional<GemmLayout> gemm_layout(std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride) {
  const std::int64_t one = 1;
  if ((cols <= 1 || col_stride == 1) && (rows <= 1 || row_stride >= std::max(one, cols))) {
    return GemmLayout{rows <= 1 ? std::max(one, cols) : row_stride, false};
  }
  if ((rows <= 1 || row_stride == 1) && (cols <= 1 || col_stride >= std::max(one, rows))) {
    return GemmLayout{cols <= 1 ? std::max(one, rows) : col_stride, true};
  }
  return std::nullopt;
}

std::optional<GemmLayout> gemm_layout(const Shape& shape, const Strides& strides) {
  const int dims = shape.size();
  check(dims >= 2, "matmul: expected at least 2 dims, got ", shape);
  return gemm_layout(shape[dims - 2], shape[dims - 1], strides[dims - 2], strides[dims - 1]);
}

std::int64_t product_workspace_bytes(DeviceKind target, std::int64_t m, std::int64_t n, std::int64_t) {
  if (target != DeviceKind::cuda) return 0;
  // Four partial results of f32, which is what splitting a long k takes; 32 MiB is what cuBLASLt asks for at most.
  constexpr std::int64_t kLeast = 64 << 10, kMost = 32 << 20;
  constexpr std::int64_t kAlignment = 256;  // what cuBLASLt wants; the arena gives less
  return std::clamp((16 * m * n + 255) / 256 * 256, kLeast, kMost) + kAlignment;
}

void validate(const Matmul& k) {
  check_floating(k.name, "a", k.a);
  check_dtype(k.name, "b", k.b, k.a.dtype());
  check_own_or_wide(k.name, "out", k.out, k.a.dtype());
  check(k.a.num_dims() >= 2 && k.b.num_dims() >= 2, k.name, ": expected at least 2 dims, got ", k.a.shape(), " and ", k.b.shape());
  check(k.a.dim(-1) == k.b.dim(-2), k.name, ": columns of a and rows of b must agree, got ", k.a.shape(), " and ", k.b.shape());
  Shape expected = broadcast_shapes(batch_of(k.a), batch_of(k.b), k.name);
  expected.push_back(k.a.dim(-2));
  expected.push_back(k.b.dim(-1));
  check_shape(k.name, "out", k.out, expected);
  check_contiguous(k.name, "out", k.out);
  for (const In* t : {&k.a, &k.b}) {
    check(gemm_layout(t->shape(), t->strides()).has_value(), k.name, ": rows or columns must be contiguous, got ", t->shape(),
          " with strides ", t->strides());
  }
}

Cost cost(const Matmul& k) {
  const double products = double(k.out.numel()) * double(k.a.dim(-1));
  return {.flops = 2 * products, .bytes = k.a.bytes() + k.b.bytes() + k.out.bytes() * (k.beta == 0 ? 1 : 2)};
}

void run(Cpu, const Matmul& k) {
  if (!k.out.has_bytes()) return;
  dispatch_product(k.a.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) { run_matmul<S, C>(k); });
}

}  // namespace refrain
