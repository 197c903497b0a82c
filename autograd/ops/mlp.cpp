#include <refrain/autograd/ops/mlp.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/autograd/ops/row_chunks.h>
#include <refrain/autograd/random.h>
#include <refrain/kernels/dropout/dropout.h>

namespace refrain {

namespace {

// The draw of dropout's mask for all hidden values; none when nothing is dropped.
struct Mask {
  double p = 0;
  RandomKey key = {};
  std::int64_t first_sample = 0;
};

struct Mlp {
  static constexpr std::string_view name = "mlp";
  struct Saved {
    SavedTensor x, weight1, bias1, weight2, bias2;
    UnaryOp gelu = UnaryOp::gelu_erf;
    Mask mask;
    std::int64_t chunk_rows = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                                          const Tensor& bias2, UnaryOp gelu, const Mask& mask, std::int64_t chunk_rows) {
    check(weight1.num_dims() == 2 && weight2.num_dims() == 2 && weight1.dim(0) == weight2.dim(1), name,
          ": weights must be [hidden, in] and [out, hidden], got ", weight1.shape(), " and ", weight2.shape());
    check(x.num_dims() >= 1 && x.dim(-1) == weight1.dim(1), name, ": x must be [..., ", weight1.dim(1), "], got ", x.shape());
    check(chunk_rows >= 0, name, ": expected chunk_rows >= 0, got ", chunk_rows);
    Shape shape = x.shape();
    shape[shape.size() - 1] = weight2.dim(0);
    const Tensor out = op_output(shape, x.dtype(), x.device());
    if (must_compute(out)) {
      const Chunks chunks = chunks_of(x, chunk_rows);
      const Hidden hidden(x, weight1, bias1, gelu, mask, chunks);
      const Tensor w2 = weight_as(name, weight2, x.dtype()), b2 = packed_or_none(bias2),
                   out_rows = as_rows(out, chunks.rows, weight2.dim(0));
      const Tensor buffer = workspace({chunks.size, weight1.dim(0)}, x.dtype(), x.device());
      for (std::int64_t i = 0; i < chunks.count(); ++i) {
        const Chunk chunk = chunks[i];
        const Tensor h = chunk.in(buffer);
        hidden.before_activation(chunk, h);
        hidden.activate(chunk, h, h);
        launch(LinearForward{.x = h, .weight = w2, .bias = b2, .out = chunk.of(out_rows), .pre_activation = {},
                             .workspace = product_workspace(x.device(), chunk.rows, w2.dim(0), w2.dim(1))});
      }
    }
    if (!needs.any()) return {out, {{}, {}, {}, {}, {}, gelu, mask, chunk_rows}};
    return {out, {x, weight1, bias1, weight2, needs[4] ? bias2 : Tensor(), gelu, mask, chunk_rows}};
  }

  static Grads<5> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor x = saved.x.get(), weight1 = saved.weight1.get(), bias1 = saved.bias1.get(), weight2 = saved.weight2.get(),
                 bias2 = saved.bias2.get();
    const std::int64_t H = weight1.dim(0);
    const Chunks chunks = chunks_of(x, saved.chunk_rows);
    const Hidden hidden(x, weight1, bias1, saved.gelu, saved.mask, chunks);
    const Tensor grad_x = needs[0] ? empty(x.shape(), x.dtype(), x.device()) : Tensor();
    const LinearGradients gradients1(weight1, needs[1], bias1, needs[2], chunks), gradients2(weight2, needs[3], bias2, needs[4], chunks);
    const Tensor w2 = weight_as(name, weight2, x.dtype()), grad_rows = as_rows(grad_out, chunks.rows, weight2.dim(0));
    const Tensor before = workspace({chunks.size, H}, x.dtype(), x.device()), after = workspace({chunks.size, H}, x.dtype(), x.device());
    const bool wants_hidden = needs[0] || needs[1] || needs[2];
    for (std::int64_t i = 0; i < chunks.count(); ++i) {
      const Chunk chunk = chunks[i];
      const Tensor h = chunk.in(before), a = chunk.in(after), g = chunk.of(grad_rows);
      if (needs[3] || wants_hidden) hidden.before_activation(chunk, h);
      if (needs[3]) hidden.activate(chunk, h, a);
      gradients2.add(chunk, g, a);
      if (!wants_hidden) continue;
      // From here on `a` holds the gradient of the hidden values.
      launch(LinearBackwardInput{.grad_out = g, .weight = w2, .out = a, .workspace = product_workspace(x.device(), chunk.rows, H, w2.dim(0))});
      hidden.drop(chunk, a);
      launch(UnaryBackward{.op = saved.gelu, .grad_out = a, .value = h, .out = a});
      gradients1.add(chunk, a, chunk.of(hidden.x));
      if (needs[0])
        launch(LinearBackwardInput{.grad_out = a, .weight = hidden.weight, .out = chunk.of(as_rows(grad_x, chunks.rows, x.dim(-1))),
                                   .workspace = product_workspace(x.device(), chunk.rows, x.dim(-1), H)});
    }
    return {grad_x, gradients1.weight(), gradients1.bias(), gradients2.weight(), gradients2.bias()};
  }

 private:
  static Tensor packed_or_none(const Tensor& bias) { return bias.defined() ? contiguous_values(bias) : bias; }

  static Chunks chunks_of(const Tensor& x, std::int64_t chunk_rows) {
    std::int64_t rows = 1;
    for (int i = 0; i + 1 < x.num_dims(); ++i) rows *= x.dim(i);
    return {rows, chunk_rows};
  }

  // What makes the hidden values of a chunk.
  struct Hidden {
    Tensor x, weight, bias;  // x as rows; the weight in its dtype
    UnaryOp gelu;
    double p;
    RandomKey key;
    std::int64_t first;  // element of the mask

    Hidden(const Tensor& x_in, const Tensor& weight1, const Tensor& bias1, UnaryOp gelu_op, const Mask& mask, const Chunks& chunks)
        : x(as_rows(x_in, chunks.rows, weight1.dim(1))),
          weight(weight_as(name, weight1, x_in.dtype())),
          bias(packed_or_none(bias1)),
          gelu(gelu_op),
          p(mask.p),
          key(mask.key) {
      const std::int64_t H = weight1.dim(0), samples = x_in.num_dims() > 1 ? x_in.dim(0) : H;  // dim 0 of the hidden values
      first = samples > 0 ? mask.first_sample * (chunks.rows * H / samples) : 0;
    }
    void before_activation(const Chunk& chunk, const Tensor& h) const {
      launch(LinearForward{.x = chunk.of(x), .weight = weight, .bias = bias, .out = h, .pre_activation = {},
                           .workspace = product_workspace(x.device(), chunk.rows, weight.dim(0), weight.dim(1))});
    }
    // `a` may be `h`.
    void activate(const Chunk& chunk, const Tensor& h, const Tensor& a) const {
      launch(Unary{.op = gelu, .x = h, .out = a});
      drop(chunk, a);
    }
    // Of values as of gradients.
    void drop(const Chunk& chunk, const Tensor& a) const {
      if (p > 0) launch(Dropout{.x = a, .p = p, .key = key, .first_element = first + chunk.begin * weight.dim(0), .out = a});
    }
  };
};

}  // namespace

Tensor chunked_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2, const Tensor& bias2,
                   const ChunkedMlpOptions& options) {
  check(options.dropout >= 0 && options.dropout <= 1, Mlp::name, ": dropout must be in [0, 1], got ", options.dropout);
  Mask mask;
  if (options.dropout > 0) {
    const RandomDraw draw = next_random();
    mask = {options.dropout, draw.key, draw.sample_offset};
  }
  const UnaryOp gelu = options.gelu == GeluForm::erf ? UnaryOp::gelu_erf : UnaryOp::gelu_tanh;
  return apply<Mlp>(x, weight1, bias1, weight2, bias2, gelu, mask, options.chunk_rows);
}

}  // namespace refrain
