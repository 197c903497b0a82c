// Comparison and selection on the CPU: plain loops over runs, which the compiler vectorises where strides allow.
#include <refrain/kernels/common/strided.h>
#include <refrain/kernels/elementwise/elementwise.h>

#include <functional>

namespace refrain {

namespace {

constexpr std::int64_t kGrain = 16384;

template <class A, class B, class C, class O, class F>
void loop3(const Out& out, O* o, const In& a, const A* pa, const In& b, const B* pb, const In& c, const C* pc, F f) {
  if (!out.has_bytes() || out.numel() == 0) return;
  const StridedLoop<4> loop(
      out.shape(), {out.strides(), broadcast_strides(a.shape(), a.strides(), out.shape()),
                    broadcast_strides(b.shape(), b.strides(), out.shape()), broadcast_strides(c.shape(), c.strides(), out.shape())});
  const std::int64_t so = loop.inner_stride(0), sa = loop.inner_stride(1), sb = loop.inner_stride(2), sc = loop.inner_stride(3);
  loop.parallel_rows(kGrain, [&](const std::array<std::int64_t, 4>& at, std::int64_t n) {
    O* to = o + at[0];
    const A* fa = pa + at[1];
    const B* fb = pb + at[2];
    const C* fc = pc + at[3];
    for (std::int64_t i = 0; i < n; ++i) to[i * so] = f(fa[i * sa], fb[i * sb], fc[i * sc]);
  });
}

template <class T>
T comparable(T value) {
  return value;
}
float comparable(f16 value) { return float(value); }
float comparable(bf16 value) { return float(value); }

template <class T>
void run_compare(const Compare& k) {
  const auto loop = [&](auto f) {
    loop3(k.out, k.out.data<bool>(), k.a, k.a.data<T>(), k.b, k.b.data<T>(), k.b, k.b.data<T>(),
          [f](T a, T b, T) { return f(comparable(a), comparable(b)); });
  };
  switch (k.op) {
    case CompareOp::equal: return loop(std::equal_to<>());
    case CompareOp::not_equal: return loop(std::not_equal_to<>());
    case CompareOp::less: return loop(std::less<>());
    case CompareOp::less_equal: return loop(std::less_equal<>());
    case CompareOp::greater: return loop(std::greater<>());
    case CompareOp::greater_equal: return loop(std::greater_equal<>());
  }
}

}  // namespace

void run(Cpu, const Compare& k) {
  dispatch_all(k.a.dtype(), [&](auto zero) { run_compare<decltype(zero)>(k); });
}

void run(Cpu, const Where& k) {
  const auto loop = [&](auto out, auto a, auto b) {
    using O = decltype(out);
    using A = decltype(a);
    using B = decltype(b);
    loop3(k.out, k.out.data<O>(), k.condition, k.condition.data<bool>(), k.a, k.a.data<A>(), k.b, k.b.data<B>(),
          [](bool condition, A x, B y) { return condition ? O(x) : O(y); });
  };
  if (k.a.dtype() == k.b.dtype()) return dispatch_all(k.out.dtype(), [&](auto zero) { loop(zero, zero, zero); });
  const bool is_a_narrow = k.a.dtype() != DType::f32;
  if ((is_a_narrow ? k.a : k.b).dtype() == DType::f16) return is_a_narrow ? loop(float{}, f16{}, float{}) : loop(float{}, float{}, f16{});
  return is_a_narrow ? loop(float{}, bf16{}, float{}) : loop(float{}, float{}, bf16{});
}

}  // namespace refrain
