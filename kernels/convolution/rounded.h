// Conversion of whole stretches while they are moved. For .cpp files of this folder.
#pragma once

#include <refrain/core/parallel.h>
#include <refrain/core/rounding.h>
#include <refrain/kernels/common/simd.h>

#include <algorithm>
#include <type_traits>

namespace refrain {

// to[i] = from[i] as To, rounded once, to nearest.
template <class From, class To>
void convert_stretch(const From* from, std::int64_t n, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, n, to);
  } else if constexpr (std::is_same_v<From, double> || std::is_same_v<To, double>) {
    for (std::int64_t i = 0; i < n; ++i) {
      if constexpr (is_half<From>) to[i] = To(float(from[i]));
      else if constexpr (std::is_same_v<From, double>) to[i] = rounded<To>(from[i]);
      else to[i] = To(from[i]);
    }
  } else {
    simd::copy(from, to, n);
  }
}

// The same on all threads.
template <class From, class To>
void round_to(const From* from, std::int64_t n, To* to) {
  parallel_for(n, 65536, [&](std::int64_t begin, std::int64_t end) { convert_stretch(from + begin, end - begin, to + begin); });
}

}  // namespace refrain
