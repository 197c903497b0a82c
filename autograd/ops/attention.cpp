#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/attention.h>
#include <refrain/autograd/random.h>
#include <refrain/core/view.h>
#include <refrain/kernels/attention/attention.h>

namespace refrain {

namespace {

struct Settings {
  bool causal = false;
  double scale = 0, dropout = 0;
  RandomKey key;
  std::int64_t first_element = 0;
};

struct Heads {
  Tensor q, k, v;  // [B, T, H, D], last dim contiguous
};

// Rows may lie anywhere, their numbers side by side.
Tensor with_contiguous_rows(const Tensor& t) {
  const bool is_ready = t.num_dims() == 0 || t.strides().back() == 1 || t.shape().back() == 1;
  return is_ready ? t.without_autograd() : contiguous_values(t);
}

Heads heads_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v)};
}

// The three thirds of a packed [B, T, 3·C], or of its gradient.
Heads heads_of(const Tensor& packed, std::int64_t num_heads) {
  const Tensor rows = with_contiguous_rows(packed);
  const std::int64_t width = packed.dim(2) / 3;
  const Tensor split = view::reshape(rows, {packed.dim(0), packed.dim(1), 3, num_heads, width / num_heads});
  return {view::select(split, 2, 0), view::select(split, 2, 1), view::select(split, 2, 2)};
}

// q's and k's shapes are the kernel's to check; only what is needed to draw numbers is read here.
Settings settings_of(const Heads& heads, const AttentionOptions& options) {
  Settings s{options.causal, options.scale.value_or(default_attention_scale(heads.q.dim(-1))), options.dropout, {}, 0};
  if (options.dropout > 0) {
    const RandomDraw draw = next_random();
    s.key = draw.key;
    s.first_element = draw.sample_offset * heads.q.dim(2) * heads.q.dim(1) * heads.k.dim(1);
  }
  return s;
}

void check_heads(std::string_view name, const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool is_defined = q.defined() && k.defined() && v.defined();
  check(is_defined && q.num_dims() == 4 && k.num_dims() == 4 && v.num_dims() == 4, name, ": q, k and v must be [B, T, H, D]");
}

// `out` is the result seen as [B, Tq, H, D].
void attend(const Heads& heads, const Tensor& key_mask, const Settings& s, const Tensor& out, const Tensor& lse) {
  launch(AttentionForward{.q = heads.q,
                          .k = heads.k,
                          .v = heads.v,
                          .key_mask = key_mask,
                          .causal = s.causal,
                          .scale = s.scale,
                          .dropout = s.dropout,
                          .key = s.key,
                          .first_element = s.first_element,
                          .out = out,
                          .lse = lse});
}

void attend_backward(const Heads& heads, const Tensor& key_mask, const Settings& s, const Tensor& out, const Tensor& lse,
                     const Tensor& grad_out, const Heads& grads) {
  const Device& device = grads.q.device();
  Tensor scratch;
  if (const std::int64_t size = AttentionBackward::num_scratch(device.target(), heads.q.dim(0), heads.q.dim(2), heads.q.dim(1))) {
    const KindScope kind(MemoryKind::workspace);
    scratch = empty({size}, DType::f32, device);
  }
  launch(AttentionBackward{.q = heads.q,
                           .k = heads.k,
                           .v = heads.v,
                           .key_mask = key_mask,
                           .causal = s.causal,
                           .scale = s.scale,
                           .dropout = s.dropout,
                           .key = s.key,
                           .first_element = s.first_element,
                           .attended = out,
                           .lse = lse,
                           .grad_out = grad_out,
                           .out = grads.q,
                           .grad_k = grads.k,
                           .grad_v = grads.v,
                           .scratch = scratch});
}

Tensor lse_like(const Heads& heads) {
  return op_output({heads.q.dim(0), heads.q.dim(2), heads.q.dim(1)}, accumulator_dtype(heads.q.dtype()), heads.q.device());
}

struct Attention {
  static constexpr std::string_view name = "attention";
  struct Saved {
    SavedTensor q, k, v, key_mask, out, lse;
    Settings settings;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_mask,
                                          const AttentionOptions& options) {
    check_heads(name, q, k, v);
    const Heads heads = heads_of(q, k, v);
    const Settings settings = settings_of(heads, options);
    const Tensor out = op_output(q.shape(), q.dtype(), q.device());
    if (!needs.any()) {
      attend(heads, key_mask, settings, out, Tensor());
      return {out, Saved{{}, {}, {}, {}, {}, {}, settings}};
    }
    const Tensor lse = lse_like(heads);
    attend(heads, key_mask, settings, out, lse);
    return {out, Saved{q, k, v, key_mask, out, lse, settings}};
  }

  static Grads<4> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor q = saved.q.get(), k = saved.k.get(), v = saved.v.get();
    const auto gradient = [](bool is_needed, const Tensor& t) { return is_needed ? empty(t.shape(), t.dtype(), t.device()) : Tensor(); };
    const Tensor grad_q = gradient(needs[0], q), grad_k = gradient(needs[1], k), grad_v = gradient(needs[2], v);
    const Tensor written_q = grad_q ? grad_q : without_bytes(q.shape(), q.dtype(), q.device());
    attend_backward(heads_of(q, k, v), saved.key_mask.get(), saved.settings, saved.out.get(), saved.lse.get(), grad_out,
                    {written_q, grad_k, grad_v});
    return {grad_q, grad_k, grad_v, Tensor()};
  }
};

struct PackedAttention {
  static constexpr std::string_view name = "attention";
  struct Saved {
    SavedTensor qkv, key_mask, out, lse;
    std::int64_t num_heads;
    Settings settings;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& qkv, const Tensor& key_mask, std::int64_t num_heads,
                                          const AttentionOptions& options) {
    check(qkv.defined() && qkv.num_dims() == 3, name, ": qkv must be [B, T, 3·C], got ", qkv.defined() ? qkv.shape() : Shape());
    check(num_heads >= 1 && qkv.dim(2) % (3 * num_heads) == 0, name, ": the last dim of qkv must be 3 × ", num_heads,
          " heads × head dim, got ", qkv.shape());
    const Heads heads = heads_of(qkv, num_heads);
    const Settings settings = settings_of(heads, options);
    const Tensor out = op_output({qkv.dim(0), qkv.dim(1), qkv.dim(2) / 3}, qkv.dtype(), qkv.device());
    const Tensor out_heads = view::reshape(out.without_autograd(), heads.q.shape());
    if (!needs.any()) {
      attend(heads, key_mask, settings, out_heads, Tensor());
      return {out, Saved{{}, {}, {}, {}, num_heads, settings}};
    }
    const Tensor lse = lse_like(heads);
    attend(heads, key_mask, settings, out_heads, lse);
    return {out, Saved{qkv, key_mask, out, lse, num_heads, settings}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs) {
    const Tensor qkv = saved.qkv.get();
    const Heads heads = heads_of(qkv, saved.num_heads);
    const Tensor grad = empty(qkv.shape(), qkv.dtype(), qkv.device());
    const Shape& shape = heads.q.shape();
    attend_backward(heads, saved.key_mask.get(), saved.settings, view::reshape(saved.out.get(), shape), saved.lse.get(),
                    view::reshape(grad_out, shape), heads_of(grad, saved.num_heads));
    return {grad, Tensor()};
  }
};

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  return apply<Attention>(q, k, v, options.key_mask, options);
}

Tensor attention_packed(const Tensor& qkv, std::int64_t num_heads, const AttentionOptions& options) {
  return apply<PackedAttention>(qkv, options.key_mask, num_heads, options);
}

}  // namespace refrain
