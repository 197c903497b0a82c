// Rows of a batch taken a chunk at a time, and what is summed over the chunks. For .cpp files of ops.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/product_workspace.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>

namespace refrain {

inline Tensor workspace(const Shape& shape, DType dtype, const Device& device) {
  const KindScope kind(MemoryKind::workspace);
  return empty(shape, dtype, device);
}

// t, whose leading dims are the rows, as [rows, …].
inline Tensor as_rows(const Tensor& t, std::int64_t rows, std::int64_t width) { return view::reshape(contiguous_values(t), {rows, width}); }
inline Tensor as_rows(const Tensor& t, std::int64_t rows) { return view::reshape(contiguous_values(t), {rows}); }

// A stretch of rows, and what belongs to it of a tensor of all rows.
struct Chunk {
  std::int64_t index, begin, rows;
  Tensor of(const Tensor& t) const { return view::slice(t, 0, begin, begin + rows); }
  // A buffer's first rows.
  Tensor in(const Tensor& buffer) const { return view::slice(buffer, 0, 0, rows); }
};

// How rows are cut: by their number and chunk_rows alone, 0 meaning all in one.
struct Chunks {
  std::int64_t rows, size;
  Chunks(std::int64_t num_rows, std::int64_t chunk_rows) : rows(num_rows), size(chunk_rows == 0 ? rows : std::min(rows, chunk_rows)) {}
  // At least one, so that results of no rows are written too.
  std::int64_t count() const { return rows == 0 ? 1 : (rows + size - 1) / size; }
  Chunk operator[](std::int64_t i) const { return {i, i * size, std::min(size, rows - i * size)}; }
};

// The gradients of a linear layer's weight and bias, summed over chunks: the first writes, the others are added in order.
// 16-bit sums of several chunks are kept in f32 and rounded once. With one chunk they have the bits of linear()'s backward.
class LinearGradients {
 public:
  // Either of the two may be unwanted, and the bias undefined then.
  LinearGradients(const Tensor& weight, bool wants_weight, const Tensor& bias, bool wants_bias, const Chunks& chunks) {
    const bool is_several = chunks.count() > 1;
    if (wants_weight) {
      weight_ = Sum(weight.shape(), weight.dtype(), weight.device(), is_several);
      const std::int64_t size = std::max(scratch_size(chunks[0].rows), scratch_size(chunks[chunks.count() - 1].rows));
      if (size > 0) scratch_ = workspace({size}, accumulator_dtype(weight_.sum.dtype()), weight.device());
    }
    if (wants_bias) {
      bias_ = Sum(bias.shape(), bias.dtype(), bias.device(), is_several);
      if (is_several) bias_part_ = workspace(bias.shape(), bias_.sum.dtype(), bias.device());
    }
  }

  // grad_out [rows, out] and x [rows, in] of the chunk.
  void add(const Chunk& chunk, const Tensor& grad_out, const Tensor& x) const {
    const bool is_first = chunk.index == 0, wants_weight = weight_.sum.defined(), wants_bias = bias_.sum.defined();
    const bool is_one_pass = wants_weight && wants_bias && weight_.sum.dtype() == bias_.sum.dtype();
    const Tensor bias_out = is_first ? bias_.sum : bias_part_;
    if (wants_weight) {
      const std::int64_t size = scratch_size(chunk.rows);
      launch(LinearBackwardWeight{.grad_out = grad_out,
                                  .x = x,
                                  .out = weight_.sum,
                                  .grad_bias = is_one_pass ? bias_out : Tensor(),
                                  .scratch = size > 0 ? view::slice(scratch_, 0, 0, size) : Tensor(),
                                  .beta = is_first ? 0.0 : 1.0,
                                  .workspace = product_workspace(x.device(), grad_out.dim(1), x.dim(1), chunk.rows)});
    }
    if (!wants_bias) return;
    if (!is_one_pass) {
      launch(LinearBackwardBias{.grad_out = grad_out, .out = bias_out, .workspace = column_sums_workspace(grad_out.device(), chunk.rows, bias_out.dim(0))});
    }
    if (!is_first) launch(Binary{.op = BinaryOp::add, .a = bias_.sum, .b = bias_out, .out = bias_.sum});
  }

  // Undefined when unwanted. Once, after the last chunk.
  Tensor weight() const { return weight_.rounded(); }
  Tensor bias() const { return bias_.rounded(); }

 private:
  struct Sum {
    Sum() = default;
    Sum(const Shape& shape, DType dtype, const Device& device, bool is_several)
        : result(empty(shape, dtype, device)), sum(is_several && is_16_bit(dtype) ? workspace(shape, DType::f32, device) : result) {}
    Tensor rounded() const {
      if (!is_same(sum, result)) launch(Convert{.x = sum, .out = result});
      return result;
    }
    Tensor result, sum;
  };

  std::int64_t scratch_size(std::int64_t rows) const {
    return LinearBackwardWeight::scratch_size(weight_.sum.device().target(), rows, weight_.sum.dim(0), weight_.sum.dim(1), weight_.sum.dtype());
  }

  Sum weight_, bias_;
  Tensor bias_part_, scratch_;
};

}  // namespace refrain
