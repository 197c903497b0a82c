// Which inputs of an op want a gradient, and the gradients handed back.
#pragma once

#include <refrain/core/tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace refrain {

// One bit an input, up to 64; inputs past that share the last bit's answer (they are all computed).
class Needs {
 public:
  constexpr Needs() = default;
  constexpr bool operator[](std::size_t input) const { return (bits_ >> (input < 64 ? input : 63)) & 1u; }
  constexpr bool any() const { return bits_ != 0; }
  constexpr void set(std::size_t input) { bits_ |= std::uint64_t{1} << (input < 64 ? input : 63); }

 private:
  std::uint64_t bits_ = 0;
};

// Exactly one gradient (or an undefined tensor) for each of N inputs; leaving one out does not compile.
template <std::size_t N>
class Grads {
 public:
  template <class... T>
    requires(sizeof...(T) == N && (std::is_convertible_v<T, Tensor> && ...))
  Grads(T&&... grads) : values_{std::forward<T>(grads)...} {}
  Tensor& operator[](std::size_t i) { return values_[i]; }
  std::vector<Tensor> take() && { return {std::make_move_iterator(values_.begin()), std::make_move_iterator(values_.end())}; }

 private:
  std::array<Tensor, N> values_;
};

}  // namespace refrain
