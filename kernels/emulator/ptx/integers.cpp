// Integer arithmetic. Results wrap; what a device leaves undefined (division by zero) gives all ones, as devices do.
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <algorithm>

namespace refrain::emulator::ptx {

namespace {

template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Double = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                                  std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

struct Add { template <class T> T operator()(T a, T b) const { return T(Unsigned<T>(a) + Unsigned<T>(b)); } };
struct Subtract { template <class T> T operator()(T a, T b) const { return T(Unsigned<T>(a) - Unsigned<T>(b)); } };
struct MultiplyLow { template <class T> T operator()(T a, T b) const { return T(std::uint64_t(a) * std::uint64_t(b)); } };
struct MultiplyHigh {
  template <class T> T operator()(T a, T b) const { return T((Double<T>(a) * Double<T>(b)) >> (8 * sizeof(T))); }
};
struct Divide {
  template <class T> T operator()(T a, T b) const {
    if (b == 0) return T(~T(0));
    if constexpr (std::is_signed_v<T>) if (b == -1) return T(0 - Unsigned<T>(a));
    return T(a / b);
  }
};
struct Remainder {
  template <class T> T operator()(T a, T b) const {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) if (b == -1) return 0;
    return T(a % b);
  }
};
struct Minimum { template <class T> T operator()(T a, T b) const { return std::min(a, b); } };
struct Maximum { template <class T> T operator()(T a, T b) const { return std::max(a, b); } };
struct Negate { template <class T> T operator()(T a) const { return T(0 - Unsigned<T>(a)); } };
struct Absolute { template <class T> T operator()(T a) const { return a < T(0) ? T(0 - Unsigned<T>(a)) : a; } };

void operands2(Decoder& d, Instruction& out, Type type) {
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
}

template <class Op>
void binary(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  operands2(d, out, type);
  with_integer(type, [&]<class T>() { out.execute = [](Warp& w, const Instruction& i) { map2<T, T, T>(w, i, Op{}); }; });
}
template <class Op>
void unary(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  with_integer(type, [&]<class T>() { out.execute = [](Warp& w, const Instruction& i) { map1<T, T>(w, i, Op{}); }; });
}

// ---- sums with carry: add.cc and addc, sub.cc and subc

template <class T, bool kSubtract>
void add_with_carry(Warp& w, const Instruction& i) {
  const bool reads = i.mode & 1, writes = i.mode & 2;
  Slot<T>* d = w.column<Slot<T>>(i.d);
  const Slot<T>*a = w.column<Slot<T>>(i.a), *b = w.column<Slot<T>>(i.b);
  std::uint32_t carry = w.carry;
  for_lanes(w.active, [&](int l) {
    const unsigned __int128 in = reads ? carry >> l & 1 : 0;
    const T x = T(a[l]), y = T(b[l]);
    const unsigned __int128 sum = kSubtract ? (unsigned __int128)(x) - y - in : (unsigned __int128)(x) + y + in;
    d[l] = T(sum);
    if (writes) carry = (carry & ~(1u << l)) | (std::uint32_t(sum >> (8 * sizeof(T))) & 1u) << l;
  });
  w.carry = carry;
}

// kReads: addc and subc.
template <bool kSubtract, bool kReads>
void carrying(Decoder& d, Instruction& out) {
  const bool writes = d.take("cc");
  const Type type = d.take_type();
  operands2(d, out, type);
  out.mode = std::uint8_t((kReads ? 1 : 0) | (writes ? 2 : 0));
  out.execute = size_of(type) == 8 ? &add_with_carry<std::uint64_t, kSubtract> : &add_with_carry<std::uint32_t, kSubtract>;
}

template <bool kSubtract>
void add_or_subtract(Decoder& d, Instruction& out) {
  const bool saturates = d.take("sat");
  if (d.take("cc")) {
    const Type type = d.take_type();
    operands2(d, out, type);
    out.mode = 2;
    out.execute = size_of(type) == 8 ? &add_with_carry<std::uint64_t, kSubtract> : &add_with_carry<std::uint32_t, kSubtract>;
    return;
  }
  if (!saturates) return binary<std::conditional_t<kSubtract, Subtract, Add>>(d, out);
  if (d.take_type() != Type::s32) d.refuse("only s32 saturates");
  operands2(d, out, Type::s32);
  out.execute = [](Warp& w, const Instruction& i) {
    map2<std::int32_t, std::int32_t, std::int32_t>(w, i, [](std::int32_t a, std::int32_t b) {
      const std::int64_t sum = kSubtract ? std::int64_t(a) - b : std::int64_t(a) + b;
      return std::int32_t(std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX));
    });
  };
}

// ---- products, with or without a sum: lo, hi, wide

template <class T>
void multiply_add_carry(Warp& w, const Instruction& i) {  // mad{c}.{lo,hi}{.cc}
  const bool reads = i.mode & 1, writes = i.mode & 2, is_high = i.mode & 4;
  Slot<T>* d = w.column<Slot<T>>(i.d);
  const Slot<T>*a = w.column<Slot<T>>(i.a), *b = w.column<Slot<T>>(i.b), *c = w.column<Slot<T>>(i.c);
  std::uint32_t carry = w.carry;
  for_lanes(w.active, [&](int l) {
    const T x = T(a[l]), y = T(b[l]);
    const Unsigned<T> product = Unsigned<T>(is_high ? MultiplyHigh{}(x, y) : MultiplyLow{}(x, y));
    const unsigned __int128 sum = (unsigned __int128)(product) + Unsigned<T>(c[l]) + (reads ? carry >> l & 1 : 0);
    d[l] = to_slot<T>(T(sum));
    if (writes) carry = (carry & ~(1u << l)) | (std::uint32_t(sum >> (8 * sizeof(T))) & 1u) << l;
  });
  w.carry = carry;
}

Type widened(Type type) {
  switch (type) {
    case Type::u16: return Type::u32;
    case Type::s16: return Type::s32;
    case Type::u32: return Type::u64;
    case Type::s32: return Type::s64;
    default: return Type::none;
  }
}

template <bool kAdds>
void multiply(Decoder& d, Instruction& out) {
  const bool is_wide = d.take("wide"), is_high = d.take("hi");
  if (!is_wide && !is_high && !d.take("lo")) d.refuse("lo, hi or wide is missing");
  const bool writes_carry = d.take("cc");
  const Type type = d.take_type(), result = is_wide ? widened(type) : type;
  out.d = d.destination(0, result);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (kAdds) out.c = d.source(3, result);
  if (writes_carry) {
    out.mode = std::uint8_t(2 | (is_high ? 4 : 0));
    with_integer(type, [&]<class T>() { if constexpr (sizeof(T) >= 4) out.execute = &multiply_add_carry<T>; });
    return;
  }
  with_integer(type, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      using Wide =
          std::conditional_t<sizeof(T) == 4, Double<T>, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>;
      if (is_wide) {
        if (kAdds) out.execute = [](Warp& w, const Instruction& i) {
          map3<Wide, T, T, Wide>(w, i, [](T a, T b, Wide c) { return Add{}(Wide(Wide(a) * Wide(b)), c); });
        };
        else
          out.execute = [](Warp& w, const Instruction& i) {
            map2<Wide, T, T>(w, i, [](T a, T b) { return Wide(Wide(a) * Wide(b)); });
          };
        return;
      }
    }
    if (is_wide) return;
    if (kAdds && is_high) out.execute = [](Warp& w, const Instruction& i) {
      map3<T, T, T, T>(w, i, [](T a, T b, T c) { return Add{}(MultiplyHigh{}(a, b), c); });
    };
    else if (kAdds) out.execute = [](Warp& w, const Instruction& i) {
      map3<T, T, T, T>(w, i, [](T a, T b, T c) { return Add{}(MultiplyLow{}(a, b), c); });
    };
    else if (is_high) out.execute = [](Warp& w, const Instruction& i) { map2<T, T, T>(w, i, MultiplyHigh{}); };
    else out.execute = [](Warp& w, const Instruction& i) { map2<T, T, T>(w, i, MultiplyLow{}); };
  });
}

void multiply_add_with_carry_in(Decoder& d, Instruction& out) {
  const bool is_high = d.take("hi");
  if (!is_high && !d.take("lo")) d.refuse("lo or hi is missing");
  out.mode = std::uint8_t(1 | (d.take("cc") ? 2 : 0) | (is_high ? 4 : 0));
  const Type type = d.take_type();
  operands2(d, out, type);
  out.c = d.source(3, type);
  with_integer(type, [&]<class T>() { if constexpr (sizeof(T) >= 4) out.execute = &multiply_add_carry<T>; });
}

void sum_of_absolute_difference(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  operands2(d, out, type);
  out.c = d.source(3, type);
  with_integer(type, [&]<class T>() {
    out.execute = [](Warp& w, const Instruction& i) {
      map3<T, T, T, T>(w, i, [](T a, T b, T c) { return Add{}(c, a < b ? Subtract{}(b, a) : Subtract{}(a, b)); });
    };
  });
}

}  // namespace

void add_integers(Table& table) {
  table["add"] = &add_or_subtract<false>;
  table["sub"] = &add_or_subtract<true>;
  table["addc"] = &carrying<false, true>;
  table["subc"] = &carrying<true, true>;
  table["mul"] = &multiply<false>;
  table["mad"] = &multiply<true>;
  table["madc"] = &multiply_add_with_carry_in;
  table["div"] = &binary<Divide>;
  table["rem"] = &binary<Remainder>;
  table["min"] = &binary<Minimum>;
  table["max"] = &binary<Maximum>;
  table["neg"] = &unary<Negate>;
  table["abs"] = &unary<Absolute>;
  table["sad"] = &sum_of_absolute_difference;
}

}  // namespace refrain::emulator::ptx
