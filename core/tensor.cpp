#include <refrain/core/cpu/strided.h>
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

std::string no_bytes(const Tensor& t) {
  const bool is_away = t.storage() != nullptr && !t.storage()->is_present();
  return concat("a tensor of shape ", t.shape(), " was read that has no bytes (",
                is_away ? "they are away: a parameter that is sharded or offloaded is here in its stage alone"
                        : "a plan device, or a value that replay did not need", ")");
}

// Elements from t's first to its last in memory, so that strides keep their meaning in a copy of them.
std::int64_t extent_of(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.num_dims(); ++i) last += (t.shape()[i] - 1) * t.strides()[i];
  return t.numel() == 0 ? 0 : last + 1;
}

// What the host sees at t's address: the bytes themselves, or a copy of them in `buffer`.
const std::byte* values_on_host(const Tensor& t, std::vector<std::byte>& buffer) {
  if (t.is_on_host()) return t.raw_data();
  if (t.autograd_slot()) t.autograd_slot()->on_read();
  buffer.resize(std::size_t(extent_of(t)) * size_of(t.dtype()));
  if (!buffer.empty()) t.device().state().range->read(buffer.data(), t.address(), std::int64_t(buffer.size()));
  return buffer.data();
}

}  // namespace

Tensor::Tensor(std::shared_ptr<Storage> storage, const Device& device, DType dtype, const Shape& shape, const Strides& strides,
               std::int64_t offset)
    : impl_(std::make_shared<Impl>(Impl{std::move(storage), device, dtype, shape, strides, offset, numel_of(shape), nullptr})) {}

bool Tensor::is_contiguous() const { return refrain::is_contiguous(shape(), strides()); }

std::byte* Tensor::address() const {
  return has_bytes() ? impl().storage->data() + impl().offset * std::int64_t(size_of(dtype())) : nullptr;
}

std::byte* Tensor::raw_data() const {
  if (impl().slot) impl().slot->on_read();
  if (!has_bytes()) fail(no_bytes(*this));
  check(is_on_host(), "a tensor of shape ", shape(), " on ", device(), " was read by the host: item(), to_vector() and to_device() copy its values");
  return address();
}

Tensor Tensor::without_autograd() const {
  return Tensor(impl().storage, impl().device, impl().dtype, impl().shape, impl().strides, impl().offset);
}

double Tensor::item() const {
  check(numel() == 1, "item: tensor of shape ", shape(), " has ", numel(), " elements, expected 1");
  if (!has_bytes()) fail(no_bytes(*this));
  std::vector<std::byte> buffer;
  const std::byte* value = values_on_host(*this, buffer);
  return dispatch_all(dtype(), [&](auto zero) { return convert<double>(*reinterpret_cast<const decltype(zero)*>(value)); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values;
  values.reserve(std::size_t(numel()));
  if (numel() == 0) return values;
  if (!has_bytes()) fail(no_bytes(*this));
  std::vector<std::byte> buffer;
  const std::byte* bytes = values_on_host(*this, buffer);
  dispatch_all(dtype(), [&](auto zero) {
    const auto* data = reinterpret_cast<const decltype(zero)*>(bytes);
    const std::int64_t step = num_dims() ? strides().back() : 1;
    detail::for_each_run(shape(), strides(), strides(), [&](std::int64_t offset, std::int64_t, std::int64_t length) {
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
  if (t.has_bytes()) device.state().range->fill({t.bytes()}, 1, t.address(), {1}, 0);
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
  if (t.has_bytes() && !values.empty()) set_bytes(t, std::as_bytes(values));
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
  copy_bytes(dst, src);
}

void copy_bytes(const Tensor& dst, const Tensor& src) {
  check(dst.storage() == nullptr || dst.storage()->is_present(), "copy: to a tensor of shape ", dst.shape(), " whose bytes are away");
  if (!dst.has_bytes() || dst.numel() == 0) return;
  const int size = int(size_of(dst.dtype()));
  const detail::AddressRange& to = *dst.device().state().range;
  if (dst.device().kind() == src.device().kind() && dst.device().index() == src.device().index()) {
    if (src.autograd_slot()) src.autograd_slot()->on_read();
    if (!src.has_bytes()) fail(no_bytes(src));
    // Two devices on one GPU have a stream each, which nothing else orders.
    const bool has_other_stream = !dst.is_on_host() && !(dst.device() == src.device());
    if (has_other_stream) src.device().synchronize();
    to.copy(dst.shape(), size, dst.address(), dst.strides(), src.address(), src.strides());
    if (has_other_stream) dst.device().synchronize();
    return;
  }
  if (!src.has_bytes()) fail(no_bytes(src));
  std::vector<std::byte> seen, packed;
  const std::byte* from = values_on_host(src, seen);
  if (dst.is_on_host()) {
    detail::copy_on_host(dst.shape(), size, dst.address(), dst.strides(), from, src.strides());
    return;
  }
  if (!src.is_contiguous()) {
    packed.resize(std::size_t(dst.bytes()));
    detail::copy_on_host(dst.shape(), size, packed.data(), contiguous_strides(dst.shape()), from, src.strides());
    from = packed.data();
  }
  const Tensor target = dst.is_contiguous() ? dst : empty_like(dst);
  to.write(target.address(), from, dst.bytes());
  if (!dst.is_contiguous()) to.copy(dst.shape(), size, dst.address(), dst.strides(), target.address(), target.strides());
}

Tensor to_device(const Tensor& t, const Device& device) {
  if (t.device() == device) return t;
  Tensor copy = t.storage() ? empty(t.shape(), t.dtype(), device) : without_bytes(t.shape(), t.dtype(), device);
  if (copy.storage()) copy_values(copy, t);
  return copy;
}

std::span<const std::byte> host_bytes(const Tensor& contiguous, std::vector<std::byte>& buffer) {
  invariant(contiguous.is_contiguous(), "host_bytes of a strided tensor");
  if (!contiguous.has_bytes()) fail(no_bytes(contiguous));
  return {values_on_host(contiguous, buffer), std::size_t(contiguous.bytes())};
}

void set_bytes(const Tensor& contiguous, std::span<const std::byte> host) {
  invariant(contiguous.is_contiguous() && contiguous.has_bytes() && std::int64_t(host.size()) == contiguous.bytes(), "set_bytes of another size");
  if (!host.empty()) contiguous.device().state().range->write(contiguous.address(), host.data(), contiguous.bytes());
}

void fill_values(const Tensor& t, double value) {
  if (t.storage()) t.storage()->bump_version();
  if (!t.has_bytes()) return;
  dispatch_all(t.dtype(), [&](auto zero) {
    const auto filled = convert<decltype(zero)>(value);
    std::uint64_t pattern = 0;
    std::memcpy(&pattern, &filled, sizeof filled);
    t.device().state().range->fill(t.shape(), int(sizeof filled), t.address(), t.strides(), pattern);
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
