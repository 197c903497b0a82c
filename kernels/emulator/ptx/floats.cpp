// f32 and f64. Arithmetic, division and square root are rounded exactly; what PTX calls .approx is computed exactly as well and
// rounded once, except tanh, whose published error (2^-11) is large enough to matter: its result keeps 11 bits.
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/rounding.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <algorithm>

namespace refrain::emulator::ptx {

namespace {

constexpr std::uint8_t kFlush = 1, kSaturate = 2, kRoundingShift = 2;

Rounding rounding_of(std::uint8_t mode) { return Rounding(mode >> kRoundingShift); }

struct Add {
  template <class T> static T exact(T a, T b) { return a + b; }
  static double odd(double a, double b) { return add_to_odd(a, b); }
};
struct Subtract {
  template <class T> static T exact(T a, T b) { return a - b; }
  static double odd(double a, double b) { return add_to_odd(a, -b); }
};
struct Multiply {
  template <class T> static T exact(T a, T b) { return a * b; }
  static double odd(double a, double b) { return a * b; }
};
struct Divide {
  template <class T> static T exact(T a, T b) { return a / b; }
  static double odd(double a, double b) {
    const double q = a / b;
    return std::isfinite(q) && b != 0 ? round_to_odd(q, std::fma(-q, b, a) / b) : q;
  }
};

// The modes that an instruction's qualifiers ask for.
std::uint8_t take_modes(Decoder& d) {
  const auto rounding = d.take_rounding();
  std::uint8_t mode = std::uint8_t((rounding == "rz" ? 1 : rounding == "rm" ? 2 : rounding == "rp" ? 3 : 0) << kRoundingShift);
  if (d.take("ftz")) mode |= kFlush;
  if (d.take("sat")) mode |= kSaturate;
  return mode;
}

float finished(double value, std::uint8_t mode) {
  float result = round_f32(value, rounding_of(mode));
  if (mode & kFlush) result = flushed(result);
  if (mode & kSaturate) result = result > 0 ? std::min(result, 1.f) : 0.f;  // NaN becomes 0
  return result;
}
float taken(float x, std::uint8_t mode) { return mode & kFlush ? flushed(x) : x; }

template <class Op>
void binary(Decoder& d, Instruction& out) {
  d.take_any("full", "approx");
  out.mode = take_modes(d);
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (type == Type::f64) {
    if (out.mode != 0) d.refuse("f64 rounds to nearest only");
    out.execute = [](Warp& w, const Instruction& i) {
      map2<double, double, double>(w, i, [](double a, double b) { return Op::exact(a, b); });
    };
  } else if (out.mode == 0) {
    out.execute = [](Warp& w, const Instruction& i) {
      map2<float, float, float>(w, i, [](float a, float b) { return Op::exact(a, b); });
    };
  } else {
    out.execute = [](Warp& w, const Instruction& i) {
      map2<float, float, float>(w, i,
                                [&](float a, float b) { return finished(Op::odd(taken(a, i.mode), taken(b, i.mode)), i.mode); });
    };
  }
}

void fused(Decoder& d, Instruction& out) {
  out.mode = take_modes(d);
  const bool has_relu = d.take("relu");
  const Type type = d.take_type();
  if (has_relu) d.refuse("relu is for 16-bit floats");
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, type);
  if (type == Type::f64) {
    if (out.mode != 0) d.refuse("f64 rounds to nearest only");
    out.execute = [](Warp& w, const Instruction& i) {
      map3<double, double, double, double>(w, i, [](double a, double b, double c) { return std::fma(a, b, c); });
    };
  } else if (out.mode == 0) {
    out.execute = [](Warp& w, const Instruction& i) {
      map3<float, float, float, float>(w, i, [](float a, float b, float c) { return std::fma(a, b, c); });
    };
  } else {
    out.execute = [](Warp& w, const Instruction& i) {
      map3<float, float, float, float>(w, i, [&](float a, float b, float c) {
        return finished(multiply_add_to_odd(taken(a, i.mode), taken(b, i.mode), taken(c, i.mode)), i.mode);
      });
    };
  }
}

// Of a NaN and a number the number, unless .NaN is asked for; -0 is below +0.
template <class T, bool kLarger>
T chosen(T a, T b, bool keeps_nan) {
  if (a != a || b != b) return keeps_nan || (a != a && b != b) ? std::numeric_limits<T>::quiet_NaN() : a != a ? b : a;
  if (a == b) return std::signbit(a) == kLarger ? b : a;
  return (a > b) == kLarger ? a : b;
}

template <bool kLarger>
void minimum_or_maximum(Decoder& d, Instruction& out) {
  constexpr std::uint8_t kKeepsNan = 2;
  out.mode = std::uint8_t((d.take("ftz") ? kFlush : 0) | (d.take("NaN") ? kKeepsNan : 0));
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (d.num_operands() > 3) d.refuse("three sources");
  if (type == Type::f64) {
    out.execute = [](Warp& w, const Instruction& i) {
      map2<double, double, double>(w, i, [](double a, double b) { return chosen<double, kLarger>(a, b, false); });
    };
  } else {
    out.execute = [](Warp& w, const Instruction& i) {
      map2<float, float, float>(
          w, i, [&](float a, float b) { return chosen<float, kLarger>(taken(a, i.mode), taken(b, i.mode), i.mode & kKeepsNan); });
    };
  }
}

// f(double) rounded to the type: the value is exact to far more bits than f32 has.
template <class F32, class F64>
void unary(Decoder& d, Instruction& out, F32, F64) {
  d.take("approx");
  out.mode = take_modes(d);
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  if (type == Type::f64) {
    if ((out.mode & ~kFlush) != 0) d.refuse("f64 rounds to nearest only");
    out.execute = [](Warp& w, const Instruction& i) { map1<double, double>(w, i, F64{}); };
  } else if (out.mode == 0) {
    out.execute = [](Warp& w, const Instruction& i) { map1<float, float>(w, i, F32{}); };
  } else {
    if ((out.mode & ~kFlush) != 0) d.refuse("rounds to nearest only");
    out.execute = [](Warp& w, const Instruction& i) {
      map1<float, float>(w, i, [](float a) { return flushed(F32{}(flushed(a))); });
    };
  }
}

struct Reciprocal { template <class T> T operator()(T a) const { return T(1) / a; } };
struct SquareRoot { template <class T> T operator()(T a) const { return std::sqrt(a); } };
struct ReciprocalRoot { template <class T> T operator()(T a) const { return T(1.0 / std::sqrt(double(a))); } };
struct PowerOfTwo { template <class T> T operator()(T a) const { return std::exp2(a); } };
struct Logarithm { template <class T> T operator()(T a) const { return std::log2(a); } };
struct Sine { template <class T> T operator()(T a) const { return std::sin(a); } };
struct Cosine { template <class T> T operator()(T a) const { return std::cos(a); } };
struct Tangent {
  template <class T> T operator()(T a) const {
    int exponent;
    const double fraction = std::frexp(std::tanh(double(a)), &exponent);
    return T(std::ldexp(std::nearbyint(fraction * 2048), exponent - 11));
  }
};

template <class Op>
void unary_of(Decoder& d, Instruction& out) { unary(d, out, Op{}, Op{}); }

// Sign bits only: NaN included, nothing is rounded.
template <bool kAbsolute>
void sign(Decoder& d, Instruction& out) {
  out.mode = d.take("ftz") ? kFlush : 0;
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  if (type == Type::f64)
    out.execute = [](Warp& w, const Instruction& i) {
      map1<double, double>(w, i, [](double a) { return kAbsolute ? std::fabs(a) : -a; });
    };
  else
    out.execute = [](Warp& w, const Instruction& i) {
      map1<float, float>(w, i, [&](float a) { return taken(kAbsolute ? std::fabs(a) : -a, i.mode); });
    };
}

void copy_sign(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (type == Type::f64)
    out.execute = [](Warp& w, const Instruction& i) {
      map2<double, double, double>(w, i, [](double a, double b) { return std::copysign(b, a); });
    };
  else
    out.execute = [](Warp& w, const Instruction& i) {
      map2<float, float, float>(w, i, [](float a, float b) { return std::copysign(b, a); });
    };
}

}  // namespace

void add_floats(Table& table) {
  table["add.f"] = &binary<Add>;
  table["sub.f"] = &binary<Subtract>;
  table["mul.f"] = &binary<Multiply>;
  table["div.f"] = &binary<Divide>;
  table["fma.f"] = &fused;
  table["mad.f"] = &fused;
  table["min.f"] = &minimum_or_maximum<false>;
  table["max.f"] = &minimum_or_maximum<true>;
  table["neg.f"] = &sign<false>;
  table["abs.f"] = &sign<true>;
  table["copysign.f"] = &copy_sign;
  table["rcp.f"] = &unary_of<Reciprocal>;
  table["sqrt.f"] = &unary_of<SquareRoot>;
  table["rsqrt.f"] = &unary_of<ReciprocalRoot>;
  table["ex2.f"] = &unary_of<PowerOfTwo>;
  table["lg2.f"] = &unary_of<Logarithm>;
  table["sin.f"] = &unary_of<Sine>;
  table["cos.f"] = &unary_of<Cosine>;
  table["tanh.f"] = &unary_of<Tangent>;
}

}  // namespace refrain::emulator::ptx
