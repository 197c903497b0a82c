// Matmul on CUDA against the CPU's kernel: every layout, alignment, batch and epilogue, by Refrain's own kernels and by cuBLASLt.
#include <refrain/tests/cuda/product_cases.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr GemmEngine kEngines[] = {GemmEngine::builtin, GemmEngine::automatic};

struct Sizes {
  std::int64_t m, n, k;
};

// op(A) [m, k] of values, stored transposed or not.
Tensor stored(const Tensor& values, bool is_transposed, std::vector<CudaGuarded>& keep, std::int64_t shift) {
  if (!is_transposed) {
    keep.emplace_back(values, shift);
    return keep.back().tensor;
  }
  keep.emplace_back(contiguous_values(view::transpose(values, -2, -1)), shift);
  return view::transpose(keep.back().tensor, -2, -1);
}

Tensor expected_matmul(const Tensor& a, const Tensor& b, const Shape& shape, DType out, double alpha = 1, double beta = 0, const Tensor& before = {}) {
  const Tensor result = beta == 0 ? full(shape, std::nan(""), out) : clone(before);
  launch(Matmul{.a = a, .b = b, .out = result, .alpha = alpha, .beta = beta, .engine = GemmEngine::builtin});
  return result;
}

}  // namespace

TEST_CASE("cuda matmul: whole numbers have the CPU's bits in every dtype, layout, size and alignment") {
  const Sizes sizes[] = {{1, 1, 1}, {64, 64, 32}, {65, 72, 40}, {31, 33, 17}, {2, 200, 96}, {96, 8, 104}};
  std::uint64_t seed = 1;
  for (const Sizes& s : sizes)
    for (DType dtype : kFloatingDtypes)
      for (int layout = 0; layout < 4; ++layout)
        for (std::int64_t shift : {0, 1}) {
          const Tensor a = whole_numbers({s.m, s.k}, dtype, ++seed), b = whole_numbers({s.k, s.n}, dtype, ++seed);
          const DType out_dtype = is_16_bit(dtype) && layout % 2 == 1 ? DType::f32 : dtype;
          const Tensor expected = expected_matmul(a, b, {s.m, s.n}, out_dtype);
          std::vector<CudaGuarded> keep;
          const Tensor cuda_a = stored(a, layout & 1, keep, shift), cuda_b = stored(b, layout & 2, keep, shift);
          for (GemmEngine engine : kEngines) {
            INFO(s.m << " x " << s.n << " x " << s.k << " " << dtype << ", layout " << layout << ", shift " << shift << ", engine " << int(engine));
            const CudaGuarded out({s.m, s.n}, out_dtype, shift);
            launch(Matmul{.a = cuda_a, .b = cuda_b, .out = out.tensor, .workspace = product_workspace(s.m, s.n, s.k), .engine = engine});
            CHECK(same_bits(on_cpu(out.tensor), expected));
            CHECK(out.is_intact());
          }
        }
}

TEST_CASE("cuda matmul: large tiles have the bits of small ones") {
  // 64 tiles of 128 x 128 and more are made by the large tiles; the batch makes it so with few sums.
  for (DType dtype : {DType::f16, DType::bf16, DType::f32})
    for (int layout = 0; layout < 4; ++layout) {
      const Tensor a = random_tensor({33, 136, 40}, dtype, 1), b = random_tensor({40, 80}, dtype, 2);
      std::vector<CudaGuarded> keep;
      const Tensor cuda_a = stored(a, layout & 1, keep, 0), cuda_b = stored(b, layout & 2, keep, 0);
      const Tensor together = poisoned({33, 136, 80}, dtype, cuda_device()), alone = poisoned({136, 80}, dtype, cuda_device());
      launch(Matmul{.a = cuda_a, .b = cuda_b, .out = together, .engine = GemmEngine::builtin});
      launch(Matmul{.a = view::select(cuda_a, 0, 32), .b = cuda_b, .out = alone, .engine = GemmEngine::builtin});
      INFO(dtype << ", layout " << layout);
      CHECK(same_bits(on_cpu(view::select(together, 0, 32)), on_cpu(alone)));
      const Tensor exact = expected_matmul(in_f64(view::select(a, 0, 0)), in_f64(b), {136, 80}, DType::f64);
      const Tensor terms = expected_matmul(magnitudes(contiguous_values(view::select(a, 0, 0))), magnitudes(b), {136, 80}, DType::f64);
      CHECK(share_of_bound(contiguous_values(view::select(on_cpu(together), 0, 0)), exact, terms, 41) <= 1);
    }
}

TEST_CASE("cuda matmul: random values are within the bound of their roundings, alpha and beta included") {
  for (DType dtype : kFloatingDtypes)
    for (GemmEngine engine : kEngines) {
      const std::int64_t m = 50, n = 70, k = 130;
      const Tensor a = random_tensor({m, k}, dtype, 3), b = random_tensor({k, n}, dtype, 4), before = random_tensor({m, n}, dtype, 5);
      const Tensor out = on_cuda(before);
      launch(Matmul{.a = on_cuda(a), .b = on_cuda(b), .out = out, .alpha = -0.5, .beta = 0.25, .engine = engine});
      const Tensor exact = expected_matmul(in_f64(a), in_f64(b), {m, n}, DType::f64, -0.5, 0.25, in_f64(before));
      const Tensor terms = expected_matmul(magnitudes(a), magnitudes(b), {m, n}, DType::f64, 0.5, 0.25, magnitudes(before));
      INFO(dtype << ", engine " << int(engine));
      CHECK(share_of_bound(out, exact, terms, double(k) + 3) <= 1);
    }
}

TEST_CASE("cuda matmul: batches broadcast, are views of packed tensors, and have up to five dims") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (GemmEngine engine : kEngines) {
      const auto agrees = [&](const Tensor& a, const Tensor& b, const Shape& shape) {
        const Tensor out = poisoned(shape, dtype, cuda_device()), expected = full(shape, std::nan(""), dtype);
        launch(Matmul{.a = a, .b = b, .out = expected, .engine = GemmEngine::builtin});
        return [=](const Tensor& cuda_a, const Tensor& cuda_b) {
          launch(Matmul{.a = cuda_a, .b = cuda_b, .out = out, .engine = engine});
          return same_bits(on_cpu(out), expected);
        };
      };
      INFO(dtype << ", engine " << int(engine));
      const Tensor a = whole_numbers({2, 1, 5, 16}, dtype, 1), b = whole_numbers({3, 16, 8}, dtype, 2);
      CHECK(agrees(a, b, {2, 3, 5, 8})(on_cuda(a), on_cuda(b)));
      // Heads of one packed tensor: [B, T, 3, H, D].
      const Tensor packed = whole_numbers({2, 6, 3, 2, 8}, dtype, 3), cuda_packed = on_cuda(packed);
      const auto head = [](const Tensor& t, std::int64_t which) { return view::transpose(view::select(t, 2, which), 1, 2); };
      CHECK(agrees(head(packed, 0), view::transpose(head(packed, 1), 2, 3), {2, 2, 6, 6})(head(cuda_packed, 0), view::transpose(head(cuda_packed, 1), 2, 3)));
      const Tensor many = whole_numbers({2, 1, 2, 1, 2, 3, 4}, dtype, 4), other = whole_numbers({1, 3, 1, 2, 1, 4, 5}, dtype, 5);
      CHECK(agrees(many, other, {2, 3, 2, 2, 2, 3, 5})(on_cuda(many), on_cuda(other)));
      // One operand for all products of a batch.
      const Tensor tall = whole_numbers({1, 2}, dtype, 6);
      if (engine == GemmEngine::builtin && dtype == DType::f32) {
        const Tensor cuda_tall = on_cuda(tall), out = poisoned({70, 1, 1}, dtype, cuda_device());
        launch(Matmul{.a = view::expand(view::reshape(cuda_tall, {1, 1, 2}), {70, 1, 2}), .b = view::reshape(cuda_tall, {2, 1}), .out = out, .engine = engine});
        CHECK(on_cpu(out).to_vector<double>() == std::vector<double>(70, expected_matmul(tall, view::reshape(tall, {2, 1}), {1, 1}, dtype).to_vector<double>()[0]));
      }
    }
}

TEST_CASE("cuda matmul: empty extents scale the output, outputs without bytes are left out, engines of the CPU are refused") {
  const Device cuda = cuda_device();
  for (DType dtype : kFloatingDtypes)
    for (GemmEngine engine : kEngines) {
      const Tensor out = on_cuda(full({3, 5}, 4, dtype));
      launch(Matmul{.a = empty({3, 0}, dtype, cuda), .b = empty({0, 5}, dtype, cuda), .out = out, .beta = 0.5, .engine = engine});
      CHECK(same_bits(on_cpu(out), full({3, 5}, 2, dtype)));
      const Tensor fresh = poisoned({3, 5}, dtype, cuda);
      launch(Matmul{.a = empty({3, 0}, dtype, cuda), .b = empty({0, 5}, dtype, cuda), .out = fresh, .engine = engine});
      CHECK(same_bits(on_cpu(fresh), full({3, 5}, 0, dtype)));
      // Operands are not read with an alpha of 0: these are NaN.
      launch(Matmul{.a = poisoned({3, 2}, dtype, cuda), .b = poisoned({2, 5}, dtype, cuda), .out = out, .alpha = 0, .beta = 1, .engine = engine});
      CHECK(same_bits(on_cpu(out), full({3, 5}, 2, dtype)));
      launch(Matmul{.a = empty({0, 2}, dtype, cuda), .b = empty({2, 5}, dtype, cuda), .out = empty({0, 5}, dtype, cuda), .engine = engine});
      launch(Matmul{.a = empty({2, 2}, dtype, cuda), .b = empty({2, 0}, dtype, cuda), .out = empty({2, 0}, dtype, cuda), .engine = engine});
    }
  const Tensor a = on_cuda(whole_numbers({2, 2}, DType::f32, 1));
  launch(Matmul{.a = a, .b = a, .out = without_bytes({2, 2}, DType::f32, cuda)});
  CHECK_THROWS_WITH(launch(Matmul{.a = a, .b = a, .out = empty({2, 2}, DType::f32, cuda), .engine = GemmEngine::eigen}), Catch::Contains("engine of the CPU"));
}
