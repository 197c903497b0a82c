// The product kernels on CUDA: what each struct asks of a product.
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/matmul/cuda/product.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>
#include <vector>

namespace refrain {

namespace {

using cuda::BatchDims, cuda::Product;

std::int64_t rows_of(const TensorArg& t) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.num_dims(); ++i) rows *= t.dim(i);
  return rows;
}

std::int64_t at_least_1(std::int64_t n) { return std::max<std::int64_t>(1, n); }

struct Workspace {
  void* data;
  std::int64_t bytes;
};
Workspace workspace_of(const OptionalOut& workspace) {
  return {workspace.address(), workspace.has_bytes() ? std::int64_t(workspace.bytes()) : 0};
}

// A batch's dims with the strides of a and b, neighbours made one where both can.
struct Batch {
  struct Dim {
    std::int64_t size, a, b;
  };
  std::vector<Dim> dims;

  explicit Batch(const Matmul& k) {
    const int num = k.out.num_dims() - 2;
    for (int i = 0; i < num; ++i) {
      const Dim dim{k.out.dim(i), stride(k.a, i - num), stride(k.b, i - num)};
      if (dim.size == 1) continue;
      if (!dims.empty() && dims.back().a == dim.a * dim.size && dims.back().b == dim.b * dim.size) {
        dims.back() = {dims.back().size * dim.size, dim.a, dim.b};
      } else {
        dims.push_back(dim);
      }
    }
  }

  // Of the batch dim counted from the end of all batch dims; 0 where t is repeated.
  static std::int64_t stride(const TensorArg& t, int from_end) {
    const int i = t.num_dims() - 2 + from_end;
    return i < 0 || t.dim(i) == 1 ? 0 : t.strides()[i];
  }
};

// The inner three dims of the batch are the product's, outer ones are gone through here.
void run_batch(const Cuda& device, Product product, const Batch& batch, std::size_t outer, std::byte* c, std::int64_t a_offset, std::int64_t b_offset) {
  const std::size_t num = batch.dims.size(), size = size_of(product.dtype);
  if (num - outer > product.batch.size()) {
    const Batch::Dim& dim = batch.dims[outer];
    std::int64_t inner = 1;
    for (std::size_t i = outer + 1; i < num; ++i) inner *= batch.dims[i].size;
    const std::int64_t step = inner * product.m * product.n * std::int64_t(size_of(product.c_dtype));
    for (std::int64_t i = 0; i < dim.size; ++i) run_batch(device, product, batch, outer + 1, c + i * step, a_offset + i * dim.a, b_offset + i * dim.b);
    return;
  }
  for (std::size_t i = outer; i < num; ++i) {
    const std::size_t to = product.batch.size() - (num - i);
    product.batch[to] = batch.dims[i].size;
    product.a.batch_strides[to] = batch.dims[i].a;
    product.b.batch_strides[to] = batch.dims[i].b;
  }
  product.a.data = static_cast<const std::byte*>(product.a.data) + a_offset * std::int64_t(size);
  product.b.data = static_cast<const std::byte*>(product.b.data) + b_offset * std::int64_t(size);
  product.c = c;
  cuda::run_product(device, product);
}

}  // namespace

void run(Cuda device, const Matmul& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  const GemmLayout a = *gemm_layout(k.a.shape(), k.a.strides()), b = *gemm_layout(k.b.shape(), k.b.strides());
  const Workspace workspace = workspace_of(k.workspace);
  const std::int64_t m = k.out.dim(-2), n = k.out.dim(-1);
  const Product product{.name = k.name, .dtype = k.a.dtype(), .m = m, .n = n, .k = k.a.dim(-1),
                        .a = {k.a.address(), a.ld, a.transposed}, .b = {k.b.address(), b.ld, b.transposed},
                        .c = k.out.address(), .c_dtype = k.out.dtype(), .ldc = n, .c_batch_stride = m * n, .alpha = k.alpha, .beta = k.beta,
                        .workspace = workspace.data, .workspace_bytes = workspace.bytes, .engine = k.engine};
  run_batch(device, product, Batch(k), 0, k.out.address(), 0, 0);
}

void run(Cuda device, const LinearForward& k) {
  if (!k.out.has_bytes()) return;
  const std::int64_t N = k.weight.dim(0), K = k.weight.dim(1);
  const Workspace workspace = workspace_of(k.workspace);
  cuda::run_product(device, {.name = k.name, .dtype = k.x.dtype(), .m = rows_of(k.x), .n = N, .k = K,
                             .a = {k.x.address(), at_least_1(K)}, .b = {k.weight.address(), at_least_1(K), true},
                             .c = k.out.address(), .c_dtype = k.out.dtype(), .ldc = at_least_1(N), .bias = k.bias.address(), .bias_dtype = k.bias.dtype(),
                             .activation = k.activation, .pre_activation = k.pre_activation.address(),
                             .workspace = workspace.data, .workspace_bytes = workspace.bytes, .engine = k.engine});
}

void run(Cuda device, const LinearBackwardInput& k) {
  if (!k.out.has_bytes()) return;
  const std::int64_t N = k.weight.dim(0), K = k.weight.dim(1);
  const Workspace workspace = workspace_of(k.workspace);
  cuda::run_product(device, {.name = k.name, .dtype = k.grad_out.dtype(), .m = rows_of(k.grad_out), .n = K, .k = N,
                             .a = {k.grad_out.address(), at_least_1(N)}, .b = {k.weight.address(), at_least_1(K)},
                             .c = k.out.address(), .c_dtype = k.out.dtype(), .ldc = at_least_1(K),
                             .workspace = workspace.data, .workspace_bytes = workspace.bytes, .engine = k.engine});
}

void run(Cuda device, const LinearBackwardWeight& k) {
  const std::int64_t N = k.out.dim(0), K = k.out.dim(1), R = rows_of(k.grad_out);
  const Workspace workspace = workspace_of(k.workspace);
  if (k.out.has_bytes()) {
    cuda::run_product(device, {.name = k.name, .dtype = k.x.dtype(), .m = N, .n = K, .k = R,
                               .a = {k.grad_out.address(), at_least_1(N), true}, .b = {k.x.address(), at_least_1(K)},
                               .c = k.out.address(), .c_dtype = k.out.dtype(), .ldc = at_least_1(K), .beta = k.beta, .may_split_k = true,
                               .workspace = workspace.data, .workspace_bytes = workspace.bytes, .engine = k.engine});
  }
  if (!k.out.has_bytes() || !k.grad_bias.has_bytes()) return;
  cuda::run_column_sums(device, {.name = k.name, .dtype = k.grad_out.dtype(), .x = k.grad_out.address(), .rows = R, .cols = N, .sums = k.grad_bias.address(),
                                 .sums_dtype = k.grad_bias.dtype(), .workspace = workspace.data, .workspace_bytes = workspace.bytes});
}

void run(Cuda device, const LinearBackwardBias& k) {
  if (!k.out.has_bytes()) return;
  const Workspace workspace = workspace_of(k.workspace);
  cuda::run_column_sums(device, {.name = k.name, .dtype = k.grad_out.dtype(), .x = k.grad_out.address(), .rows = rows_of(k.grad_out), .cols = k.out.dim(0),
                                 .sums = k.out.address(), .sums_dtype = k.out.dtype(), .workspace = workspace.data, .workspace_bytes = workspace.bytes});
}

void cuda::run_product(const Cuda& device, const Product& product) {
  const bool is_by_name = product.engine == GemmEngine::cublaslt;
  check(product.engine == GemmEngine::automatic || product.engine == GemmEngine::builtin || is_by_name, product.name,
        product.engine == GemmEngine::cudnn ? ": cuDNN was asked for a matrix product" : ": a GEMM engine of the CPU was asked for on CUDA");
  if (product.m == 0 || product.n == 0 || product.num_products() == 0) return;
  if (product.engine != GemmEngine::builtin && run_cublaslt_product(device, product)) return;
  if (is_by_name && product.k > 0 && product.alpha != 0) {  // else there is nothing to multiply
    cublaslt_library().require(product.name);
    fail(product.name, ": cuBLASLt does not offer this product of ", product.m, " x ", product.n, " x ", product.k);
  }
  run_own_product(device, product);
}

}  // namespace refrain
