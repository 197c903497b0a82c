// The linear layer's kernels. Rows of x are the batch: in forward and in the gradient of x each row's bits are its own.
#include <refrain/core/parallel.h>
#include <refrain/kernels/matmul/gemm_engine.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/kernels/matmul/product_dtypes.h>

#include <algorithm>

namespace refrain {

namespace {

std::int64_t rows_of(const TensorArg& t) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.num_dims(); ++i) rows *= t.dim(i);
  return rows;
}

Shape with_last(const TensorArg& t, std::int64_t last) {
  Shape shape = t.shape();
  shape[shape.size() - 1] = last;
  return shape;
}

void check_rows(std::string_view kernel, std::string_view argument, const TensorArg& t, std::int64_t width, DType dtype) {
  check(t.num_dims() >= 1 && t.dim(-1) == width, kernel, ": ", argument, " must be [..., ", width, "], got ", t.shape());
  check_dtype(kernel, argument, t, dtype);
  check_contiguous(kernel, argument, t);
}

// A result or bias that may be wider than the operands.
void check_vector(std::string_view kernel, std::string_view argument, const TensorArg& t, std::int64_t size, DType operands) {
  check_shape(kernel, argument, t, {size});
  check_own_or_wide(kernel, argument, t, operands);
  check_contiguous(kernel, argument, t);
}

void check_weight(std::string_view kernel, const TensorArg& weight) {
  check_floating(kernel, "weight", weight);
  check(weight.num_dims() == 2, kernel, ": weight must be [out, in], got ", weight.shape());
  check_contiguous(kernel, "weight", weight);
}

std::int64_t at_least_1(std::int64_t n) { return std::max<std::int64_t>(1, n); }

}  // namespace

void validate(const LinearForward& k) {
  check_weight(k.name, k.weight);
  const DType dtype = k.weight.dtype();
  check_rows(k.name, "x", k.x, k.weight.dim(1), dtype);
  const Shape out = with_last(k.x, k.weight.dim(0));
  check_shape(k.name, "out", k.out, out);
  check_rows(k.name, "out", k.out, k.weight.dim(0), dtype);
  if (k.bias) {
    check_vector(k.name, "bias", k.bias, k.weight.dim(0), dtype);
  }
  if (k.pre_activation.defined()) {
    check_shape(k.name, "pre_activation", k.pre_activation, out);
    check_rows(k.name, "pre_activation", k.pre_activation, k.weight.dim(0), dtype);
  }
}

Cost cost(const LinearForward& k) {
  double bytes = k.x.bytes() + k.weight.bytes() + k.out.bytes();
  if (k.bias) bytes += k.bias.bytes();
  if (k.pre_activation.defined()) bytes += k.pre_activation.bytes();
  return {.flops = 2 * double(k.out.numel()) * double(k.weight.dim(1)), .bytes = bytes};
}

void run(Cpu, const LinearForward& k) {
  if (!k.out.has_bytes()) return;
  dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) {
    const std::int64_t N = k.weight.dim(0), K = k.weight.dim(1);
    gemm(GemmArgs<T>{.m = rows_of(k.x), .n = N, .k = K,
                     .a = {k.x.data<T>(), at_least_1(K)}, .b = {k.weight.data<T>(), at_least_1(K), true},
                     .c = k.out.data<T>(), .ldc = N, .bias = bias_of<T>(k.bias), .activation = k.activation,
                     .pre_activation = k.pre_activation.data<T>(), .engine = k.engine});
  });
}

void validate(const LinearBackwardInput& k) {
  check_weight(k.name, k.weight);
  check_rows(k.name, "grad_out", k.grad_out, k.weight.dim(0), k.weight.dtype());
  check_shape(k.name, "out", k.out, with_last(k.grad_out, k.weight.dim(1)));
  check_rows(k.name, "out", k.out, k.weight.dim(1), k.weight.dtype());
}

Cost cost(const LinearBackwardInput& k) {
  return {.flops = 2 * double(k.grad_out.numel()) * double(k.weight.dim(1)), .bytes = k.grad_out.bytes() + k.weight.bytes() + k.out.bytes()};
}

void run(Cpu, const LinearBackwardInput& k) {
  if (!k.out.has_bytes()) return;
  dispatch_floating(k.out.dtype(), k.name, [&]<class T>(T) {
    const std::int64_t N = k.weight.dim(0), K = k.weight.dim(1);
    gemm(GemmArgs<T>{.m = rows_of(k.grad_out), .n = K, .k = N,
                     .a = {k.grad_out.data<T>(), at_least_1(N)}, .b = {k.weight.data<T>(), at_least_1(K)},
                     .c = k.out.data<T>(), .ldc = K, .engine = k.engine});
  });
}

void validate(const LinearBackwardWeight& k) {
  check_weight(k.name, k.out);
  check_floating(k.name, "grad_out", k.grad_out);
  const DType dtype = k.grad_out.dtype();
  check_own_or_wide(k.name, "out", k.out, dtype);
  check(k.beta == 0 || !is_16_bit(k.out.dtype()), k.name, ": out must be f32 when it is added to, got ", k.out.dtype());
  check_rows(k.name, "grad_out", k.grad_out, k.out.dim(0), dtype);
  check_shape(k.name, "x", k.x, with_last(k.grad_out, k.out.dim(1)));
  check_rows(k.name, "x", k.x, k.out.dim(1), dtype);
  if (k.grad_bias.defined()) {
    check_vector(k.name, "grad_bias", k.grad_bias, k.out.dim(0), dtype);
    check_dtype(k.name, "grad_bias", k.grad_bias, k.out.dtype());
  }
  const std::int64_t scratch = LinearBackwardWeight::scratch_size(k.out.target(), rows_of(k.x), k.out.dim(0), k.out.dim(1), k.out.dtype());
  if (scratch == 0) return;
  check(k.scratch.defined(), k.name, ": scratch must be [", scratch, "], got none");
  check_shape(k.name, "scratch", k.scratch, {scratch});
  check_dtype(k.name, "scratch", k.scratch, accumulator_dtype(dtype));
}

Cost cost(const LinearBackwardWeight& k) {
  return {.flops = 2 * double(k.grad_out.numel()) * double(k.out.dim(1)), .bytes = k.grad_out.bytes() + k.x.bytes() + k.out.bytes() * (k.beta == 0 ? 1 : 2)};
}

void run(Cpu, const LinearBackwardWeight& k) {
  if (!k.out.has_bytes()) return;
  dispatch_product(k.x.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) {
    const std::int64_t N = k.out.dim(0), K = k.out.dim(1);
    gemm(GemmArgs<S, C>{.m = N, .n = K, .k = rows_of(k.x),
                        .a = {k.grad_out.data<S>(), at_least_1(N), true}, .b = {k.x.data<S>(), at_least_1(K)},
                        .c = k.out.data<C>(), .ldc = K, .beta = accumulator_t<S>(k.beta), .a_row_sums = k.grad_bias.data<C>(),
                        .split_k = true, .scratch = k.scratch.data<accumulator_t<S>>(), .engine = k.engine});
  });
}

void validate(const LinearBackwardBias& k) {
  check_floating(k.name, "grad_out", k.grad_out);
  check(k.grad_out.num_dims() >= 1, k.name, ": grad_out must be [..., N], got ", k.grad_out.shape());
  check_contiguous(k.name, "grad_out", k.grad_out);
  check_vector(k.name, "out", k.out, k.grad_out.dim(-1), k.grad_out.dtype());
}

Cost cost(const LinearBackwardBias& k) { return {.flops = double(k.grad_out.numel()), .bytes = k.grad_out.bytes() + k.out.bytes()}; }

void run(Cpu, const LinearBackwardBias& k) {
  if (!k.out.has_bytes()) return;
  dispatch_product(k.grad_out.dtype(), k.out.dtype(), k.name, [&]<class S, class C>(S, C) {
    const std::int64_t rows = rows_of(k.grad_out), N = k.out.dim(0);
    const std::int64_t grain = rows * N < 65536 ? at_least_1(N) : 64;
    parallel_for(N, grain, [&](std::int64_t begin, std::int64_t end) {
      detail::column_sums(k.grad_out.data<S>() + begin, N, rows, end - begin, k.out.data<C>() + begin);
    });
  });
}

}  // namespace refrain
