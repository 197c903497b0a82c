// Attention on CUDA, every kernel in every layout, against the CPU's within the bounds of attention_problem.h.
#include <refrain/tests/cuda/attention_problem.h>

using namespace refrain;
using namespace refrain::attention_test;

namespace {

// The head dims of the tensor-core kernels.
const std::vector<std::int64_t> kTensorDims = {32, 64, 80, 96, 128};

}  // namespace

TEST_CASE("cuda attention: every length around a tile's, of queries and keys alike or not") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const std::int64_t length : {1, 15, 16, 17, 63, 64, 65, 130}) check({1, 1, length, length, 32, length % 2 == 0}, dtype);
    check({1, 2, 3, 70, 32}, dtype);
    check({1, 2, 70, 3, 32}, dtype);
  }
}

TEST_CASE("cuda attention: every head dim with a tensor-core kernel") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t width : kTensorDims) {
      check({2, 1, 66, 130, width, true, true, 0.25}, dtype);
      check({1, 2, 130, 65, width, false, false, 0, Layout::packed}, dtype);
    }
  }
}

TEST_CASE("cuda attention: other head dims, f32 and f64 go without tensor cores") {
  for (const std::int64_t width : {1, 24, 63, 65, 128, 136, 256}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (width == 128 && size_of(dtype) == 2) continue;
      check({2, 1, 33, 34, width, true, true, 0.25, width % 2 ? Layout::misaligned : Layout::packed}, dtype);
    }
  }
  check({1, 1, 65, 67, 64, false, false, 0}, DType::f32);
  check({1, 1, 65, 67, 64, true, false, 0.5}, DType::f64);
}

TEST_CASE("cuda attention: the last query sees every key, and queries before the first key see none") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    check({1, 2, 17, 100, 64, true}, dtype);
    check({1, 2, 100, 17, 64, true}, dtype);  // the first 83 queries see nothing
    check({1, 1, 129, 64, 64, true}, dtype);
  }
}

TEST_CASE("cuda attention: masked keys weigh nothing, wherever they are") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    check({3, 1, 40, 140, 32, false, true}, dtype);
    check({3, 1, 70, 70, 64, true, true, 0, Layout::packed}, dtype);
  }
}

TEST_CASE("cuda attention: rows that are not aligned to 16 bytes") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t width : {std::int64_t{32}, std::int64_t{80}})
      check({1, 2, 65, 66, width, true, false, 0.1, Layout::misaligned}, dtype);
  }
}

TEST_CASE("cuda attention: dropout drops the pairs that it drops on the CPU, in every alignment of its blocks of numbers") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t keys : {64, 65, 66, 67}) {
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, (std::int64_t{1} << 33) + 4}) {
        // Equal scores and v the unit matrix's rows: the output tells of every pair whether it was kept.
        Case c{1, 2, 70, keys, 128, false, false, 0.5};
        c.first_element = first;
        CAPTURE(keys, first, name_of(dtype));
        Inputs in = make(c, dtype);
        fill_values(in.q, 0);
        std::vector<double> unit(std::size_t(keys * 2 * 128), 0);
        for (std::int64_t j = 0; j < keys; ++j) {
          for (std::int64_t h = 0; h < 2; ++h) unit[std::size_t((j * 2 + h) * 128 + j)] = 1;
        }
        in.v = tensor_of(unit, in.keys(), dtype);
        // With grad_out the unit matrix too, grad_v is the transposed matrix of dropped-out probabilities.
        std::vector<double> rows(std::size_t(70 * 2 * 128), 0);
        for (std::int64_t i = 0; i < 70; ++i) {
          for (std::int64_t h = 0; h < 2; ++h) rows[std::size_t((i * 2 + h) * 128 + i)] = 1;
        }
        in.grad_out = tensor_of(rows, in.queries(), dtype);
        const Outputs got = on_device(in);
        const auto out = got.out.to_vector<double>(), grad_v = got.grad_v.to_vector<double>();
        std::int64_t wrong = 0, num_kept = 0;
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t i = 0; i < 70; ++i) {
            for (std::int64_t j = 0; j < keys; ++j) {
              const bool is_kept = in.key.word(std::uint64_t(first + (h * 70 + i) * keys + j)) >= 0x80000000u;
              num_kept += is_kept;
              wrong += (out[std::size_t((i * 2 + h) * 128 + j)] != 0) != is_kept;
              wrong += (grad_v[std::size_t((j * 2 + h) * 128 + i)] != 0) != is_kept;
            }
          }
        }
        CHECK(wrong == 0);
        CHECK(num_kept > 0);
      }
    }
  }
}

TEST_CASE("cuda attention: any finite scale, negative and zero too") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const double scale : {-0.25, 1e-30, 3.0}) {
      Case c{2, 1, 40, 70, 64, true, true};
      c.scale = scale;
      check(c, dtype);
    }
    Inputs in = make({1, 1, 20, 40, 32, true}, dtype);
    in.scale = 0;
    // Equal scores: a query's log-sum-exp is the logarithm of the number of keys that it sees.
    const auto lse = on_device(in).lse.to_vector<double>();
    for (std::size_t i = 0; i < lse.size(); ++i) CHECK(std::abs(lse[i] - std::log(double(i + 21))) <= 1e-6);
  }
}

TEST_CASE("cuda attention: hostile numbers") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
      const Tensor out = poisoned(q.shape(), dtype, cuda_device());
      launch(AttentionForward{.q = on_cuda(q), .k = on_cuda(k), .v = on_cuda(v), .scale = scale, .out = out});
      return on_cpu(out).to_vector<double>();
    };
    const Shape one{1, 1, 1, 64}, eight{1, 8, 1, 64};
    // The sum of eight values at the end of f16's range is beyond it, their average is not.
    for (const double x : attend(zeros(one, dtype), zeros(eight, dtype), full(eight, 65504, dtype), 1))
      CHECK(std::abs(x / 65504 - 1) <= 0x1p-8);
    // Scores of 3,686,400 before they are scaled.
    for (const double x : attend(full(one, 240, dtype), full(eight, 240, dtype), full(eight, 1, dtype), 0x1p-16)) CHECK(x == 1);
    // A key that is not a number reaches every output.
    const Tensor keys = zeros(eight, dtype);
    fill_values(view::slice(keys, 1, 3, 4), std::nan(""));
    for (const double x : attend(zeros(one, dtype), keys, full(eight, 1, dtype), 1)) CHECK(std::isnan(x));
  }
}

TEST_CASE("cuda attention: no samples, heads, queries or keys") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    check({0, 2, 5, 5, 64}, dtype);
    check({2, 0, 5, 5, 64}, dtype);
    check({1, 1, 0, 5, 64}, dtype);
    check({1, 1, 5, 0, 64}, dtype);
  }
}

TEST_CASE("cuda attention: outputs without bytes are left out and change no bit of the others") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Inputs in = make({1, 2, 65, 66, 32, true, false, 0.25}, dtype);
    const Outputs all = on_device(in);
    const Tensor q = on_cuda(in.q), k = on_cuda(in.k), v = on_cuda(in.v), out = on_cuda(all.out), lse = on_cuda(all.lse);
    const Tensor nothing = without_bytes(in.queries(), dtype, cuda_device()),
                 no_key = without_bytes(in.keys(), dtype, cuda_device());
    const Tensor only_out = poisoned(in.queries(), dtype, cuda_device()),
                 only_lse = poisoned(in.sums(), DType::f32, cuda_device());
    launch(forward_of(in, q, k, v, {}, only_out, {}));
    launch(forward_of(in, q, k, v, {}, nothing, only_lse));
    CHECK(same_bits(on_cpu(only_out), all.out));
    CHECK(same_bits(on_cpu(only_lse), all.lse));
    const auto part = [&](const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
      launch(AttentionBackward{.q = q,
                               .k = k,
                               .v = v,
                               .causal = true,
                               .scale = in.scale,
                               .dropout = in.c.dropout,
                               .key = in.key,
                               .first_element = in.c.first_element,
                               .attended = out,
                               .lse = lse,
                               .grad_out = on_cuda(in.grad_out),
                               .out = grad_q,
                               .grad_k = grad_k,
                               .grad_v = grad_v,
                               .scratch = poisoned({numel_of(in.sums())}, DType::f32, cuda_device())});
    };
    const Tensor grad_q = poisoned(in.queries(), dtype, cuda_device()), grad_k = poisoned(in.keys(), dtype, cuda_device());
    const Tensor grad_v = poisoned(in.keys(), dtype, cuda_device());
    part(grad_q, {}, {});
    part(nothing, grad_k, no_key);
    part(nothing, no_key, grad_v);
    CHECK(same_bits(on_cpu(grad_q), all.grad_q));
    CHECK(same_bits(on_cpu(grad_k), all.grad_k));
    CHECK(same_bits(on_cpu(grad_v), all.grad_v));
  }
}

TEST_CASE("cuda attention: a head's bits do not depend on the others, the layout or the run") {
  for (const DType dtype : {DType::f16, DType::f32}) {
    const Case c{2, 2, 66, 68, 64, true};
    const Inputs in = make(c, dtype);
    const Outputs all = on_device(in), again = on_device(in);
    Inputs packed = in;
    packed.c.layout = Layout::packed;
    Inputs odd = in;
    odd.c.layout = Layout::misaligned;
    const Outputs from_packed = on_device(packed), from_odd = on_device(odd);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(same_bits(again.all()[i], all.all()[i]));
      CHECK(same_bits(from_packed.all()[i], all.all()[i]));
      CHECK(same_bits(from_odd.all()[i], all.all()[i]));
    }
    const auto sample = [](const Tensor& t) { return contiguous_values(view::slice(t, 0, 1, 2)); };
    Inputs one = in;
    one.c.batch = 1;
    one.q = sample(in.q), one.k = sample(in.k), one.v = sample(in.v), one.grad_out = sample(in.grad_out);
    const Outputs alone = on_device(one);
    for (std::size_t i = 0; i < 5; ++i) CHECK(same_bits(alone.all()[i], sample(all.all()[i])));
  }
}
