// Tensor: a handle to a strided view of typed bytes. Copies share the view; ops return new tensors.
// Views without gradients are in view.h; differentiable ones in autograd/ops.
#pragma once

#include <refrain/core/dtype.h>
#include <refrain/core/shape.h>
#include <refrain/core/storage.h>

#include <span>
#include <vector>

namespace refrain {

class Tensor;

// What autograd attaches to a tensor. Core knows no more of it than this.
class AutogradSlot {
 public:
  virtual ~AutogradSlot() = default;
  virtual bool requires_grad() const = 0;
  // Someone outside an op reads the tensor's values.
  virtual void on_read() {}
};

class Tensor {
 public:
  Tensor() = default;  // undefined: "no tensor here"
  // A view of storage; `offset` is in elements. Null storage makes a tensor that has a size but no bytes.
  Tensor(std::shared_ptr<Storage> storage, const Device& device, DType dtype, const Shape& shape, const Strides& strides, std::int64_t offset);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }

  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  std::int64_t offset() const { return impl().offset; }
  int num_dims() const { return impl().shape.size(); }
  std::int64_t dim(int i) const { return shape()[normalize_dim(i, num_dims(), "dim")]; }
  std::int64_t numel() const { return impl().numel; }
  std::int64_t bytes() const { return numel() * std::int64_t(size_of(dtype())); }
  DType dtype() const { return impl().dtype; }
  const Device& device() const { return impl().device; }
  bool is_contiguous() const;

  // False on a plan device and for values that a replay need not compute.
  bool has_bytes() const { return impl().storage != nullptr && impl().storage->data() != nullptr; }
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }

  // First element. Throws InvalidArgument for the wrong type, a tensor without bytes, or one whose bytes are on a CUDA device.
  template <class T>
  T* data() const {
    check(dtype() == dtype_of<T>, "data: tensor is ", dtype(), ", asked for ", dtype_of<T>);
    return reinterpret_cast<T*>(raw_data());
  }
  std::byte* raw_data() const;         // counts as a read by the caller
  // The same without being noticed; null when there are no bytes. Not to be followed by the host where is_on_host() is false.
  std::byte* address() const;
  bool is_on_host() const { return device().kind() != DeviceKind::cuda; }

  // The value of a tensor with one element, converted to double.
  double item() const;
  // All values in row-major order, converted to T. T may be any type the dtype converts to.
  template <class T> std::vector<T> to_vector() const;

  const std::shared_ptr<AutogradSlot>& autograd_slot() const { return impl().slot; }
  void set_autograd_slot(std::shared_ptr<AutogradSlot> slot) const { impl().slot = std::move(slot); }
  bool requires_grad() const { return defined() && impl_->slot && impl_->slot->requires_grad(); }
  // The same view as a new tensor that autograd does not know.
  Tensor without_autograd() const;
  // Whether no other tensor, and nothing saved, sees these bytes.
  bool is_sole_owner() const { return impl_.use_count() == 1 && impl().storage != nullptr && impl().storage.use_count() == 1; }
  // True when both handles are one tensor object.
  friend bool is_same(const Tensor& a, const Tensor& b) { return a.impl_ == b.impl_; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    Device device;
    DType dtype;
    Shape shape;
    Strides strides;
    std::int64_t offset, numel;
    std::shared_ptr<AutogradSlot> slot;
  };
  Impl& impl() const {
    invariant(impl_ != nullptr, "use of an undefined tensor");
    return *impl_;
  }
  std::shared_ptr<Impl> impl_;
};

// Uninitialised, contiguous.
Tensor empty(const Shape& shape, DType dtype, const Device& device = Device::cpu());
Tensor empty_like(const Tensor& t);
// Has shape and dtype but neither bytes nor a place in the arena.
Tensor without_bytes(const Shape& shape, DType dtype, const Device& device);
Tensor zeros(const Shape& shape, DType dtype, const Device& device = Device::cpu());
Tensor full(const Shape& shape, double value, DType dtype, const Device& device = Device::cpu());

// A tensor of T's dtype with these values in row-major order.
template <class T>
Tensor from_values(std::span<const T> values, const Shape& shape, const Device& device = Device::cpu());
template <class T>
Tensor from_values(const std::vector<T>& values, const Shape& shape, const Device& device = Device::cpu()) {
  return from_values(std::span<const T>(values), shape, device);
}

// Copies values between equal shapes and dtypes, any strides, any devices. Bumps dst's version.
void copy_values(const Tensor& dst, const Tensor& src);
// The same without a new version: for bytes that come back as they were. Equal shapes and dtypes are taken for granted.
void copy_bytes(const Tensor& dst, const Tensor& src);
// The tensor itself where it is on the device already, else a contiguous copy there. Not recorded on any tape.
Tensor to_device(const Tensor& t, const Device& device);
// The values as contiguous bytes of the host, whatever the device: the tensor's own, or a copy in `buffer`.
std::span<const std::byte> host_bytes(const Tensor& contiguous, std::vector<std::byte>& buffer);
// Sets a contiguous tensor's bytes from the host's.
void set_bytes(const Tensor& contiguous, std::span<const std::byte> host);
// Sets every element, converted to the dtype. Bumps the version.
void fill_values(const Tensor& t, double value);
// A contiguous copy.
Tensor clone(const Tensor& t);
// The tensor itself if contiguous, else a contiguous copy. Not recorded on any tape.
Tensor contiguous_values(const Tensor& t);

}  // namespace refrain
