#include <refrain/core/view.h>

#include <optional>

namespace refrain::view {

namespace {

Tensor make(const Tensor& base, const Shape& shape, const Strides& strides, std::int64_t offset) {
  if (base.autograd_slot()) base.autograd_slot()->on_read();  // the view's readers are unknown to a checkpoint region
  return Tensor(base.storage(), base.device(), base.dtype(), shape, strides, offset);
}

// Strides that show t's elements in `shape`, when that is possible without a copy: runs of dims that are contiguous
// with each other can be split and merged freely, others cannot.
std::optional<Strides> reshaped_strides(const Tensor& t, const Shape& shape) {
  if (t.numel() == 0) return contiguous_strides(shape);
  Strides strides = Strides::filled(shape.size(), 1);
  int out = shape.size() - 1;
  for (int in = t.num_dims() - 1; in >= 0;) {
    const std::int64_t step = t.strides()[in];
    std::int64_t extent = t.shape()[in--];
    while (in >= 0 && (t.shape()[in] == 1 || t.strides()[in] == step * extent)) extent *= t.shape()[in--];
    std::int64_t covered = 1;
    while (out >= 0 && (covered < extent || shape[out] == 1)) {
      strides[out] = step * covered;
      covered *= shape[out--];
    }
    if (covered != extent) return std::nullopt;
  }
  return strides;
}

}  // namespace

Tensor slice(const Tensor& t, int dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  dim = normalize_dim(dim, t.num_dims(), "slice");
  const std::int64_t extent = t.shape()[dim];
  const std::int64_t first = begin < 0 ? begin + extent : begin;
  const std::int64_t last = end < 0 ? end + extent : end;
  check(step >= 1 && first >= 0 && first <= last && last <= extent, "slice: ", begin, ":", end, ":", step, " does not fit dim ", dim,
        " of ", t.shape());
  Shape shape = t.shape();
  Strides strides = t.strides();
  shape[dim] = (last - first + step - 1) / step;
  strides[dim] *= step;
  return make(t, shape, strides, t.offset() + first * t.strides()[dim]);
}

Tensor select(const Tensor& t, int dim, std::int64_t index) {
  dim = normalize_dim(dim, t.num_dims(), "select");
  const std::int64_t extent = t.shape()[dim];
  check(index >= -extent && index < extent, "select: index ", index, " is out of range for dim ", dim, " of ", t.shape());
  Shape shape = t.shape();
  Strides strides = t.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make(t, shape, strides, t.offset() + (index < 0 ? index + extent : index) * t.strides()[dim]);
}

Tensor transpose(const Tensor& t, int dim0, int dim1) {
  dim0 = normalize_dim(dim0, t.num_dims(), "transpose");
  dim1 = normalize_dim(dim1, t.num_dims(), "transpose");
  Shape shape = t.shape();
  Strides strides = t.strides();
  std::swap(shape[dim0], shape[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  return make(t, shape, strides, t.offset());
}

Tensor permute(const Tensor& t, const Dims& dims) {
  check(dims.size() == t.num_dims(), "permute: ", dims, " for a tensor of ", t.num_dims(), " dims");
  Shape shape = t.shape();
  Strides strides = t.strides();
  unsigned seen = 0;
  for (int i = 0; i < dims.size(); ++i) {
    const int from = normalize_dim(int(dims[i]), t.num_dims(), "permute");
    check(!(seen & (1u << from)), "permute: dim ", from, " appears twice in ", dims);
    seen |= 1u << from;
    shape[i] = t.shape()[from];
    strides[i] = t.strides()[from];
  }
  return make(t, shape, strides, t.offset());
}

Shape resolve_shape(const Shape& shape, std::int64_t numel) {
  Shape resolved = shape;
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      check(unknown < 0, "reshape: more than one -1 in ", shape);
      unknown = i;
    } else {
      known *= shape[i];
    }
  }
  if (unknown >= 0) {
    check(known > 0 && numel % known == 0, "reshape: ", numel, " elements do not fill ", shape);
    resolved[unknown] = numel / known;
  }
  check(numel_of(resolved) == numel, "reshape: ", numel, " elements do not fill ", shape);
  return resolved;
}

bool can_reshape(const Tensor& t, const Shape& shape) { return reshaped_strides(t, shape).has_value(); }

Tensor reshape(const Tensor& t, const Shape& shape) {
  const Shape resolved = resolve_shape(shape, t.numel());
  const std::optional<Strides> strides = reshaped_strides(t, resolved);
  check(strides.has_value(), "reshape: a view of ", t.shape(), " with strides ", t.strides(), " as ", resolved, " would need a copy");
  return make(t, resolved, *strides, t.offset());
}

Tensor expand(const Tensor& t, const Shape& shape) {
  check(shape.size() >= t.num_dims(), "expand: ", t.shape(), " to ", shape);
  Strides strides = Strides::filled(shape.size(), 0);
  for (int i = 1; i <= t.num_dims(); ++i) {
    const std::int64_t from = t.shape()[t.num_dims() - i], to = shape[shape.size() - i];
    check(from == to || from == 1, "expand: ", t.shape(), " to ", shape);
    if (from == to) strides[shape.size() - i] = t.strides()[t.num_dims() - i];
  }
  return make(t, shape, strides, t.offset());
}

}  // namespace refrain::view
