// f16 and bf16, alone and in pairs. Every result is the exact one rounded once to the type.
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/rounding.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <algorithm>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;

constexpr std::uint8_t kFlush = 1, kSaturate = 2, kRelu = 4, kKeepsNan = 8;

struct F16 {
  static double widen(u32 bits) { return half_bits::f16_to_float(std::uint16_t(bits)); }
  static u32 narrow(double x) { return round_f16(x); }
  static constexpr double kLeastNormal = 0x1p-14;
};
struct BF16 {
  static double widen(u32 bits) { return half_bits::bf16_to_float(std::uint16_t(bits)); }
  static u32 narrow(double x) { return round_bf16(x); }
  static constexpr double kLeastNormal = 0x1p-126;
};

struct Add { static double of(double a, double b, double) { return add_to_odd(a, b); } };
struct Subtract { static double of(double a, double b, double) { return add_to_odd(a, -b); } };
struct Multiply { static double of(double a, double b, double) { return a * b; } };
struct Fused { static double of(double a, double b, double c) { return multiply_add_to_odd(a, b, c); } };
struct PowerOfTwo { static double of(double a, double, double) { return std::exp2(a); } };
struct Tangent { static double of(double a, double, double) { return std::tanh(a); } };

template <class Format, class Op>
u32 one(u32 a, u32 b, u32 c, std::uint8_t mode) {
  const auto taken = [&](u32 bits) {
    const double x = Format::widen(bits);
    return (mode & kFlush) && std::fabs(x) < Format::kLeastNormal ? std::copysign(0., x) : x;
  };
  double x = Op::of(taken(a), taken(b), taken(c));
  if ((mode & kFlush) && std::fabs(Format::widen(Format::narrow(x))) < Format::kLeastNormal) x = std::copysign(0., x);
  if (mode & kSaturate) x = x > 0 ? std::min(x, 1.) : 0;
  if ((mode & kRelu) && x < 0) x = 0;
  return Format::narrow(x) & 0xffff;
}

template <class Format, class Op, bool kPair>
void run3(Warp& w, const Instruction& i) {
  u32* d = w.column<u32>(i.d);
  const u32 *a = w.column<u32>(i.a), *b = w.column<u32>(i.b), *c = w.column<u32>(i.c);
  for_lanes(w.active, [&](int l) {
    u32 result = one<Format, Op>(a[l], b[l], c[l], i.mode);
    if (kPair) result |= one<Format, Op>(a[l] >> 16, b[l] >> 16, c[l] >> 16, i.mode) << 16;
    d[l] = result;
  });
}

template <class Op>
Handler handler_of(Type type) {
  switch (type) {
    case Type::f16: return &run3<F16, Op, false>;
    case Type::f16x2: return &run3<F16, Op, true>;
    case Type::bf16: return &run3<BF16, Op, false>;
    case Type::bf16x2: return &run3<BF16, Op, true>;
    default: return nullptr;
  }
}

template <class Op, int kSources>
void arithmetic(Decoder& d, Instruction& out) {
  if (const auto rounding = d.take_rounding(); !rounding.empty() && rounding != "rn") d.refuse("rounds to nearest only");
  d.take("approx");
  out.mode = std::uint8_t((d.take("ftz") ? kFlush : 0) | (d.take("sat") ? kSaturate : 0) | (d.take("relu") ? kRelu : 0));
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = kSources > 1 ? d.source(2, type) : out.a;
  out.c = kSources > 2 ? d.source(3, type) : out.a;
  out.execute = handler_of<Op>(type);
}

// Neither rounds: the result is one of the operands.
template <class Format, bool kLarger>
u32 chosen(u32 a, u32 b, bool keeps_nan) {
  const double x = Format::widen(a), y = Format::widen(b);
  if (x != x || y != y) return keeps_nan || (x != x && y != y) ? 0x7fff : x != x ? b & 0xffff : a & 0xffff;
  if (x == y) return (std::signbit(x) == kLarger ? b : a) & 0xffff;
  return ((x > y) == kLarger ? a : b) & 0xffff;
}
template <class Format, bool kLarger, bool kPair>
void choose(Warp& w, const Instruction& i) {
  map2<u32, u32, u32>(w, i, [&](u32 a, u32 b) {
    u32 result = chosen<Format, kLarger>(a, b, i.mode & kKeepsNan);
    if (kPair) result |= chosen<Format, kLarger>(a >> 16, b >> 16, i.mode & kKeepsNan) << 16;
    return result;
  });
}
template <bool kLarger>
void minimum_or_maximum(Decoder& d, Instruction& out) {
  out.mode = d.take("NaN") ? kKeepsNan : 0;
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  switch (type) {
    case Type::f16: out.execute = &choose<F16, kLarger, false>; break;
    case Type::f16x2: out.execute = &choose<F16, kLarger, true>; break;
    case Type::bf16: out.execute = &choose<BF16, kLarger, false>; break;
    default: out.execute = &choose<BF16, kLarger, true>; break;
  }
}

template <bool kAbsolute>
void sign(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.execute = [](Warp& w, const Instruction& i) {
    map1<u32, u32>(w, i, [](u32 a) { return kAbsolute ? a & 0x7fff7fffu : a ^ 0x80008000u; });
  };
}

}  // namespace

void add_halves(Table& table) {
  table["add.h"] = &arithmetic<Add, 2>;
  table["sub.h"] = &arithmetic<Subtract, 2>;
  table["mul.h"] = &arithmetic<Multiply, 2>;
  table["fma.h"] = &arithmetic<Fused, 3>;
  table["ex2.h"] = &arithmetic<PowerOfTwo, 1>;
  table["tanh.h"] = &arithmetic<Tangent, 1>;
  table["min.h"] = &minimum_or_maximum<false>;
  table["max.h"] = &minimum_or_maximum<true>;
  table["neg.h"] = &sign<false>;
  table["abs.h"] = &sign<true>;
}

}  // namespace refrain::emulator::ptx
