// Checkpoint regions: run a block now, drop what it computed, and run it again when backward needs it.
//
//   Tensor y = checkpoint(block, x);
//   Tensor y = checkpoint({.keep = {"matmul", "attention"}}, block, x);   // keep what is dear, replay what is cheap
//
// The region owns a copy of the callable and of its arguments. Arguments and results may be tensors, vectors, arrays,
// tuples and pairs of them, and anything else that can be copied. Tensors the callable captures are found in the first
// run, kept, checked for changes and given their gradients; so are parameters. Regions nest. In replay the same random
// numbers are drawn, effects are off (is_replaying()), and only what backward reads is computed.
// Chen et al., "Training deep nets with sublinear memory cost", 2016.
#pragma once

#include <refrain/core/tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain {

struct CheckpointOptions {
  // Names of ops whose results are kept instead of replayed: "matmul" (linear and convolutions too), "attention", or
  // an op's own name.
  std::vector<std::string> keep = {};
  // Hash every value in the first run and compare when replay makes it again; ReplayMismatch names op and module.
  bool certify = false;
  // The arguments wait for backward in host memory (Device::host()); for arguments that nothing else keeps on the device.
  bool offload = false;
};

namespace detail {

// What a region returns: its tensors, and the value they belong into, without them.
struct RegionResult {
  std::vector<Tensor> tensors;
  std::shared_ptr<const void> form;
};
using RegionFunction = std::function<RegionResult(std::span<const Tensor> arguments)>;
RegionResult run_region(const CheckpointOptions& options, RegionFunction function, std::span<const Tensor> arguments);

// Calls f on every tensor inside a value.
template <class T, class F>
void for_each_tensor(T& value, F& f);

template <class Tuple, class F, std::size_t... I>
void for_each_tensor_in_tuple(Tuple& tuple, F& f, std::index_sequence<I...>) {
  (for_each_tensor(std::get<I>(tuple), f), ...);
}

template <class T> inline constexpr bool is_sequence = false;
template <class T> inline constexpr bool is_sequence<std::vector<T>> = true;
template <class T, std::size_t N> inline constexpr bool is_sequence<std::array<T, N>> = true;
template <> inline constexpr bool is_sequence<std::vector<bool>> = false;
template <class T> inline constexpr bool is_tuple = false;
template <class... T> inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B> inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T, class F>
void for_each_tensor(T& value, F& f) {
  if constexpr (std::is_same_v<T, Tensor>) {
    f(value);
  } else if constexpr (is_sequence<T>) {
    for (auto& element : value) for_each_tensor(element, f);
  } else if constexpr (is_tuple<T>) {
    for_each_tensor_in_tuple(value, f, std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

template <class F, class Tuple>
decltype(auto) call_region(F& f, Tuple& arguments) {
  if constexpr (requires { std::apply(f, arguments); }) return std::apply(f, arguments);
  else return std::apply(*f, arguments);  // a shared pointer to a module
}

template <class F, class... Args>
auto checkpoint_call(const CheckpointOptions& options, F&& f, Args&&... args) {
  using Arguments = std::tuple<std::decay_t<Args>...>;
  using Result = std::decay_t<decltype(call_region(std::declval<std::decay_t<F>&>(), std::declval<Arguments&>()))>;
  // The region's closure holds the arguments without their tensors: those are the tape's to keep or to rebuild.
  Arguments arguments(std::forward<Args>(args)...);
  std::vector<Tensor> tensors;
  const auto take = [&](Tensor& t) { tensors.push_back(std::exchange(t, Tensor())); };
  for_each_tensor(arguments, take);
  auto function = [f = std::decay_t<F>(std::forward<F>(f)), arguments = std::move(arguments)](std::span<const Tensor> given) mutable {
    Arguments call = arguments;
    std::size_t next_argument = 0;
    const auto put_argument = [&](Tensor& t) { t = given[next_argument++]; };
    for_each_tensor(call, put_argument);
    auto form = std::make_shared<Result>(call_region(f, call));
    RegionResult returned;
    const auto take_result = [&](Tensor& t) { returned.tensors.push_back(std::exchange(t, Tensor())); };
    for_each_tensor(*form, take_result);
    returned.form = std::move(form);
    return returned;
  };
  const RegionResult returned = run_region(options, std::move(function), tensors);
  Result result = *std::static_pointer_cast<const Result>(returned.form);
  std::size_t next = 0;
  const auto put = [&](Tensor& t) { t = returned.tensors[next++]; };
  for_each_tensor(result, put);
  return result;
}

}  // namespace detail

template <class F, class... Args>
  requires(!std::is_same_v<std::decay_t<F>, CheckpointOptions>)
auto checkpoint(F&& f, Args&&... args) {
  return detail::checkpoint_call(CheckpointOptions{}, std::forward<F>(f), std::forward<Args>(args)...);
}

template <class F, class... Args>
auto checkpoint(const CheckpointOptions& options, F&& f, Args&&... args) {
  return detail::checkpoint_call(options, std::forward<F>(f), std::forward<Args>(args)...);
}

}  // namespace refrain
