#include <refrain/core/tensor.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace refrain {

namespace {

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, f16> || std::is_same_v<From, bf16>) return convert<To>(float(value));
  else if constexpr (std::is_same_v<To, f16> || std::is_same_v<To, bf16>) return To(float(value));
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && !std::is_same_v<To, bool>) {
    // Saturates, NaN is 0: a plain cast is undefined out of range. 2^digits is exact where max() is not.
    if (!(value > From(std::numeric_limits<To>::min()))) return value == value ? std::numeric_limits<To>::min() : To(0);
    if (value >= std::ldexp(From(1), std::numeric_limits<To>::digits)) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else return static_cast<To>(value);
}

// Calls f(element offset of a, element offset of b) for every run along the last dim: f(offset_a, offset_b, length).
template <class F>
void for_each_run(const Shape& shape, const Strides& a, const Strides& b, F&& f) {
  if (numel_of(shape) == 0) return;
  if (shape.empty()) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1});
  const int last = shape.size() - 1;
  Dims index = Dims::filled(shape.size(), 0);
  std::int64_t offset_a = 0, offset_b = 0;
  for (;;) {
    f(offset_a, offset_b, shape[last]);
    int dim = last - 1;
    for (; dim >= 0; --dim) {
      offset_a += a[dim];
      offset_b += b[dim];
      if (++index[dim] < shape[dim]) break;
      offset_a -= a[dim] * shape[dim];
      offset_b -= b[dim] * shape[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace

Tensor::Tensor(std::shared_ptr<Storage> storage, const Device& device, DType dtype, const Shape& shape, const Strides& strides,
               std::int64_t offset)
    : impl_(std::make_shared<Impl>(Impl{std::move(storage), device, dtype, shape, strides, offset, numel_of(shape), nullptr})) {}

bool Tensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (int i = num_dims() - 1; i >= 0; --i) {
    if (shape()[i] != 1 && strides()[i] != expected) return numel() == 0;
    expected *= shape()[i];
  }
  return true;
}

std::byte* Tensor::address() const {
  return has_bytes() ? impl().storage->data() + impl().offset * std::int64_t(size_of(dtype())) : nullptr;
}

std::byte* Tensor::raw_data() const {
  if (impl().slot) impl().slot->on_read();
  check(has_bytes(), "a tensor of shape ", shape(), " was read that has no bytes (a plan device, or a value that replay did not need)");
  return address();
}

Tensor Tensor::without_autograd() const {
  return Tensor(impl().storage, impl().device, impl().dtype, impl().shape, impl().strides, impl().offset);
}

double Tensor::item() const {
  check(numel() == 1, "item: tensor of shape ", shape(), " has ", numel(), " elements, expected 1");
  return dispatch_all(dtype(), [&](auto zero) { return convert<double>(*reinterpret_cast<decltype(zero)*>(raw_data())); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values;
  values.reserve(std::size_t(numel()));
  if (numel() == 0) return values;
  dispatch_all(dtype(), [&](auto zero) {
    const auto* data = reinterpret_cast<const decltype(zero)*>(raw_data());
    const std::int64_t step = num_dims() ? strides().back() : 1;
    for_each_run(shape(), strides(), strides(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) values.push_back(convert<T>(data[offset + i * step]));
    });
  });
  return values;
}

template std::vector<double> Tensor::to_vector() const;
template std::vector<float> Tensor::to_vector() const;
template std::vector<std::int64_t> Tensor::to_vector() const;
template std::vector<std::int32_t> Tensor::to_vector() const;
template std::vector<std::uint8_t> Tensor::to_vector() const;

Tensor empty(const Shape& shape, DType dtype, const Device& device) {
  const std::int64_t bytes = numel_of(shape) * std::int64_t(size_of(dtype));
  return Tensor(Storage::allocate(device, bytes), device, dtype, shape, contiguous_strides(shape), 0);
}

Tensor empty_like(const Tensor& t) { return empty(t.shape(), t.dtype(), t.device()); }

Tensor without_bytes(const Shape& shape, DType dtype, const Device& device) {
  return Tensor(nullptr, device, dtype, shape, contiguous_strides(shape), 0);
}

Tensor zeros(const Shape& shape, DType dtype, const Device& device) {
  Tensor t = empty(shape, dtype, device);
  if (t.has_bytes()) std::memset(t.address(), 0, std::size_t(t.bytes()));
  return t;
}

Tensor full(const Shape& shape, double value, DType dtype, const Device& device) {
  Tensor t = empty(shape, dtype, device);
  fill_values(t, value);
  return t;
}

template <class T>
Tensor from_values(std::span<const T> values, const Shape& shape, const Device& device) {
  check(std::int64_t(values.size()) == numel_of(shape), "from_values: ", values.size(), " values for shape ", shape);
  Tensor t = empty(shape, dtype_of<T>, device);
  if (t.has_bytes() && !values.empty()) std::memcpy(t.address(), values.data(), values.size_bytes());
  return t;
}

template Tensor from_values(std::span<const double>, const Shape&, const Device&);
template Tensor from_values(std::span<const float>, const Shape&, const Device&);
template Tensor from_values(std::span<const f16>, const Shape&, const Device&);
template Tensor from_values(std::span<const bf16>, const Shape&, const Device&);
template Tensor from_values(std::span<const std::int64_t>, const Shape&, const Device&);
template Tensor from_values(std::span<const std::int32_t>, const Shape&, const Device&);
template Tensor from_values(std::span<const std::uint8_t>, const Shape&, const Device&);

void copy_values(const Tensor& dst, const Tensor& src) {
  check(dst.shape() == src.shape() && dst.dtype() == src.dtype(), "copy: ", src.dtype(), " ", src.shape(), " to ", dst.dtype(), " ",
        dst.shape());
  if (dst.storage()) dst.storage()->bump_version();
  if (!dst.has_bytes() || dst.numel() == 0) return;
  const std::int64_t size = std::int64_t(size_of(dst.dtype()));
  std::byte* to = dst.address();
  const std::byte* from = src.raw_data();
  if (dst.is_contiguous() && src.is_contiguous()) {
    std::memmove(to, from, std::size_t(dst.bytes()));
    return;
  }
  const int last = dst.num_dims() - 1;
  const std::int64_t to_step = last >= 0 ? dst.strides()[last] : 1, from_step = last >= 0 ? src.strides()[last] : 1;
  for_each_run(dst.shape(), dst.strides(), src.strides(), [&](std::int64_t to_offset, std::int64_t from_offset, std::int64_t length) {
    std::byte* to_run = to + to_offset * size;
    const std::byte* from_run = from + from_offset * size;
    if (to_step == 1 && from_step == 1) {
      std::memcpy(to_run, from_run, std::size_t(length * size));
    } else {
      for (std::int64_t i = 0; i < length; ++i) std::memcpy(to_run + i * to_step * size, from_run + i * from_step * size, std::size_t(size));
    }
  });
}

void fill_values(const Tensor& t, double value) {
  if (t.storage()) t.storage()->bump_version();
  if (!t.has_bytes()) return;
  dispatch_all(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T filled = convert<T>(value);
    T* data = reinterpret_cast<T*>(t.address());
    const std::int64_t step = t.num_dims() ? t.strides().back() : 1;
    for_each_run(t.shape(), t.strides(), t.strides(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) data[offset + i * step] = filled;
    });
  });
}

Tensor clone(const Tensor& t) {
  Tensor copy = empty_like(t);
  copy_values(copy, t);
  return copy;
}

Tensor contiguous_values(const Tensor& t) {
  if (t.is_contiguous()) return t;
  return t.storage() ? clone(t) : without_bytes(t.shape(), t.dtype(), t.device());
}

}  // namespace refrain
