// norm_dtypes::dispatch() with the device's element types.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>
#include <refrain/kernels/norm/dtypes.h>

namespace refrain::norm_dtypes {

template <class T> struct OnDevice { using type = T; };
template <> struct OnDevice<f16> { using type = cuda::half; };
template <> struct OnDevice<bf16> { using type = cuda::bfloat; };

// Calls f.template operator()<X, O, W>().
template <class K, class F>
void dispatch_on_device(const K& k, DType out, F&& f) {
  dispatch(k, out, [&]<class X, class O, class W>() {
    f.template operator()<typename OnDevice<X>::type, typename OnDevice<O>::type, typename OnDevice<W>::type>();
  });
}

}  // namespace refrain::norm_dtypes
