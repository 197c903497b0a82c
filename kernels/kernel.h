// The kernel contract. A kernel is a plain struct of named arguments (In, OptionalIn, Out, numbers); the same struct
// serves every backend. For a struct K somebody writes, next to it:
//
//   static constexpr std::string_view name;   K's name in messages, ledgers and reports
//   Out out;                                  its first output (the device is taken from it)
//   void validate(const K&);                  throws InvalidArgument: `name: expected …, got …`
//   Cost cost(const K&);                      floating-point operations and bytes read and written
//   void run(Cpu, const K&);                  the arithmetic; outputs without bytes are left out
//   void run(Cuda, const K&);                 the same on the GPU, in order on its stream; an own op may do without
//
// and launch(k) does the rest. Kernels never allocate: scratch is an Out of the struct, sized by shapes alone.
#pragma once

#include <refrain/core/context.h>
#include <refrain/core/tensor.h>

#include <concepts>
#include <string_view>

namespace refrain {

struct Cpu {};

struct Cost {
  double flops = 0;
  double bytes = 0;
  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

// A tensor seen by a kernel: address, type and strides, without ownership.
class TensorArg {
 public:
  bool defined() const { return defined_; }
  explicit operator bool() const { return defined_; }
  // Present, but only its shape: the plan device, or a value that replay need not compute.
  bool has_bytes() const { return address_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int num_dims() const { return shape_.size(); }
  std::int64_t dim(int i) const { return shape_[i < 0 ? i + shape_.size() : i]; }
  std::int64_t numel() const { return numel_; }
  double bytes() const { return double(numel_) * double(size_of(dtype_)); }
  bool is_contiguous() const { return is_contiguous_; }

 protected:
  TensorArg() = default;
  explicit TensorArg(const Tensor& t);
  std::byte* address_ = nullptr;
  Shape shape_;
  Strides strides_;
  std::int64_t numel_ = 0;
  DType dtype_ = DType::f32;
  bool defined_ = false, is_contiguous_ = false;
};

// An input. Has no default: a struct that leaves one out does not compile.
class In : public TensorArg {
 public:
  In(const Tensor& t);  // implicit, so that `.x = x` works; counts as a read outside an op
  template <class T> const T* data() const { return reinterpret_cast<const T*>(address_); }
  const std::byte* address() const { return address_; }
};

// An input that may be absent.
class OptionalIn : public TensorArg {
 public:
  OptionalIn() = default;
  OptionalIn(const Tensor& t);  // an undefined tensor is absence
  template <class T> const T* data() const { return reinterpret_cast<const T*>(address_); }
  const std::byte* address() const { return address_; }
};

// An output, or scratch. Writing in place is the caller's business: ops bump versions.
class Out : public TensorArg {
 public:
  Out(const Tensor& t);
  template <class T> T* data() const { return reinterpret_cast<T*>(address_); }
  std::byte* address() const { return address_; }
  DeviceKind device_kind() const { return device_->kind; }
  DeviceKind target() const { return device_->target; }  // whose scratch sizes apply
  Cuda cuda() const { return device_->range->cuda(); }

 private:
  const detail::DeviceState* device_;
};

// An output that nobody may want: undefined, or without bytes.
class OptionalOut : public TensorArg {
 public:
  OptionalOut() = default;
  OptionalOut(const Tensor& t);
  template <class T> T* data() const { return reinterpret_cast<T*>(address_); }
  std::byte* address() const { return address_; }
};

template <class K>
concept Kernel = requires(const K& k) {
  { K::name } -> std::convertible_to<std::string_view>;
  { k.out } -> std::convertible_to<const Out&>;
  validate(k);
  { cost(k) } -> std::same_as<Cost>;
  run(Cpu{}, k);
};

// What the calling thread's kernels have cost so far, in total and in replay.
struct CostMeter {
  Cost total, replay;
  std::int64_t launches = 0;
};
CostMeter& cost_meter();

namespace detail {
void book(const Cost& cost);
[[noreturn]] void fail_without_cuda_kernel(std::string_view kernel);
}

// Validates, books the cost and runs on the output's device.
template <Kernel K>
void launch(const K& k) {
  validate(k);
  if (thread_context().skip_kernels) return;
  detail::book(cost(k));
  switch (k.out.device_kind()) {
    case DeviceKind::plan: return;
    case DeviceKind::cpu: return run(Cpu{}, k);
    case DeviceKind::cuda:
      if constexpr (requires { run(Cuda{}, k); }) return run(k.out.cuda(), k);
      else detail::fail_without_cuda_kernel(K::name);
  }
}

// For validate(): throws `name: argument must be [shape], got [shape]`, and the same for dtypes.
void check_shape(std::string_view kernel, std::string_view argument, const TensorArg& arg, const Shape& expected);
void check_dtype(std::string_view kernel, std::string_view argument, const TensorArg& arg, DType expected);
void check_contiguous(std::string_view kernel, std::string_view argument, const TensorArg& arg);
void check_floating(std::string_view kernel, std::string_view argument, const TensorArg& arg);  // any of the four

}  // namespace refrain
