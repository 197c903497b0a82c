// cvt: between integers, floats and pairs of 16-bit floats, with every rounding mode and saturation.
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/rounding.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <algorithm>
#include <utility>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr std::uint8_t kFlush = 4, kSaturate = 8, kRelu = 16;  // above the two bits of the rounding mode

Rounding rounding_of(std::uint8_t mode) { return Rounding(mode & 3); }

bool is_float(Type type) { return type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64; }

// Reads a column of either width as the type says; every value but large 64-bit integers is exact in a double.
double read_float(Type type, const Warp& w, std::int32_t column, int lane) {
  switch (type) {
    case Type::f16: return half_bits::f16_to_float(std::uint16_t(w.column<u32>(column)[lane]));
    case Type::bf16: return half_bits::bf16_to_float(std::uint16_t(w.column<u32>(column)[lane]));
    case Type::f32: return std::bit_cast<float>(w.column<u32>(column)[lane]);
    default: return std::bit_cast<double>(w.column<u64>(column)[lane]);
  }
}
void write_float(Type type, const Warp& w, std::int32_t column, int lane, double x, Rounding rounding) {
  switch (type) {
    case Type::f16: w.column<u32>(column)[lane] = round_f16(x, rounding); break;
    case Type::bf16: w.column<u32>(column)[lane] = round_bf16(x, rounding); break;
    case Type::f32: w.column<u32>(column)[lane] = std::bit_cast<u32>(round_f32(x, rounding)); break;
    default: w.column<u64>(column)[lane] = std::bit_cast<u64>(x);
  }
}
u64 read_integer(Type type, const Warp& w, std::int32_t column, int lane, bool is_wide_column) {
  const u64 raw = is_wide_column ? w.column<u64>(column)[lane] : w.column<u32>(column)[lane];
  u64 value = 0;
  with_integer(type, [&]<class T>() { value = u64(T(raw)); });  // sign or zero extended
  return value;
}

// Types travel in `immediate`, the width of the columns in `count`.
constexpr std::uint8_t kWideSource = 1, kWideDestination = 2;
Type destination_type(const Instruction& i) { return Type(i.immediate & 255); }
Type source_type(const Instruction& i) { return Type(i.immediate >> 8); }

double between_zero_and_one(double x) { return x > 0 ? std::min(x, 1.) : 0; }

void float_to_float(Warp& w, const Instruction& i) {
  const Type to = destination_type(i), from = source_type(i);
  for_lanes(w.active, [&](int l) {
    double x = read_float(from, w, i.a, l);
    if (i.mode & kFlush) x = from == Type::f32 ? double(flushed(float(x))) : x;
    if (i.mode & kSaturate) x = between_zero_and_one(x);
    if ((i.mode & kRelu) && x < 0) x = 0;
    write_float(to, w, i.d, l, x, rounding_of(i.mode));
    if ((i.mode & kFlush) && to == Type::f32) {
      u32& bits = w.column<u32>(i.d)[l];
      bits = std::bit_cast<u32>(flushed(std::bit_cast<float>(bits)));
    }
  });
}

// cvt.rni.f32.f32 and its like: to an integral value.
double integral(double x, Rounding mode) {
  switch (mode) {
    case Rounding::nearest: return std::nearbyint(x);
    case Rounding::zero: return std::trunc(x);
    case Rounding::down: return std::floor(x);
    case Rounding::up: return std::ceil(x);
  }
  return x;
}
void float_to_integral_float(Warp& w, const Instruction& i) {
  for_lanes(w.active, [&](int l) {
    double x = integral(read_float(source_type(i), w, i.a, l), rounding_of(i.mode));
    if (i.mode & kSaturate) x = between_zero_and_one(x);
    write_float(destination_type(i), w, i.d, l, x, Rounding::nearest);
  });
}

// The fast forms that fill attention and norm kernels.
void float_to_bfloat(Warp& w, const Instruction& i) {
  map1<u32, u32>(w, i, [](u32 a) { return u32(half_bits::float_to_bf16(std::bit_cast<float>(a))); });
}
void float_to_half(Warp& w, const Instruction& i) {
  map1<u32, u32>(w, i, [](u32 a) { return u32(half_bits::float_to_f16(std::bit_cast<float>(a))); });
}
void half_to_float(Warp& w, const Instruction& i) {
  map1<float, u32>(w, i, [](u32 a) { return half_bits::f16_to_float(std::uint16_t(a)); });
}
void bfloat_to_float(Warp& w, const Instruction& i) {
  map1<float, u32>(w, i, [](u32 a) { return half_bits::bf16_to_float(std::uint16_t(a)); });
}

// The first operand becomes the high half.
template <bool kIsBfloat>
void floats_to_pair(Warp& w, const Instruction& i) {
  map2<u32, float, float>(w, i, [&](float high, float low) {
    if (i.mode & kRelu) high = high < 0 ? 0 : high, low = low < 0 ? 0 : low;
    if (rounding_of(i.mode) == Rounding::nearest) {
      if constexpr (kIsBfloat) return u32(half_bits::float_to_bf16(high)) << 16 | half_bits::float_to_bf16(low);
      else return u32(half_bits::float_to_f16(high)) << 16 | half_bits::float_to_f16(low);
    }
    const auto rounded = [&](float x) {
      return u32(kIsBfloat ? round_bf16(x, rounding_of(i.mode)) : round_f16(x, rounding_of(i.mode)));
    };
    return rounded(high) << 16 | rounded(low);
  });
}

// To tf32: 10 bits of mantissa, ties away from zero.
void float_to_tf32(Warp& w, const Instruction& i) {
  map1<u32, u32>(w, i, [](u32 a) { return (a & 0x7f800000u) == 0x7f800000u ? a : (a + 0x1000u) & 0xffffe000u; });
}

template <class T>
T saturated(double x, bool is_from_f64) {
  if (std::isnan(x)) return is_from_f64 || sizeof(T) == 8 ? T(u64(1) << (8 * sizeof(T) - 1)) : T(0);
  // The limits as doubles: the upper one is the first that does not fit.
  const double upper = std::ldexp(1., int(8 * sizeof(T)) - (std::is_signed_v<T> ? 1 : 0));
  if (x >= upper) return std::numeric_limits<T>::max();
  if (x <= (std::is_signed_v<T> ? -upper : 0.)) return std::numeric_limits<T>::min();
  return T(x);
}
template <class T>
void float_to_integer(Warp& w, const Instruction& i) {
  const Type from = source_type(i);
  for_lanes(w.active, [&](int l) {
    double x = read_float(from, w, i.a, l);
    if ((i.mode & kFlush) && from == Type::f32) x = flushed(float(x));
    const T value = saturated<T>(integral(x, rounding_of(i.mode)), from == Type::f64);
    // Sign or zero extended to the register.
    if (i.count & kWideDestination) w.column<u64>(i.d)[l] = u64(value);
    else w.column<u32>(i.d)[l] = u32(value);
  });
}

// Integers of 64 bits are exact in a long double, which the rounding of the last step is checked against.
float integer_to_f32(u64 raw, bool is_signed_source, Rounding mode) {
  const long double exact = is_signed_source ? static_cast<long double>(std::int64_t(raw)) : static_cast<long double>(raw);
  const float nearest = is_signed_source ? static_cast<float>(std::int64_t(raw)) : static_cast<float>(raw);
  if (mode == Rounding::nearest || nearest == exact) return nearest;
  const bool wants_below = mode == Rounding::down || (mode == Rounding::zero && exact > 0);
  if (wants_below == (nearest > exact)) return std::nextafterf(nearest, wants_below ? -INFINITY : INFINITY);
  return nearest;
}
double integer_to_f64(u64 raw, bool is_signed_source, Rounding mode) {
  const long double exact = is_signed_source ? static_cast<long double>(std::int64_t(raw)) : static_cast<long double>(raw);
  const double nearest = is_signed_source ? static_cast<double>(std::int64_t(raw)) : static_cast<double>(raw);
  if (mode == Rounding::nearest || nearest == exact) return nearest;
  const bool wants_below = mode == Rounding::down || (mode == Rounding::zero && exact > 0);
  if (wants_below == (nearest > exact)) return std::nextafter(nearest, wants_below ? -INFINITY : INFINITY);
  return nearest;
}
// To 16 bits by way of a double that is rounded to odd, so that nothing is rounded twice.
double integer_to_odd(u64 raw, bool is_signed_source) {
  const double down = integer_to_f64(raw, is_signed_source, Rounding::zero);
  const long double exact = is_signed_source ? static_cast<long double>(std::int64_t(raw)) : static_cast<long double>(raw);
  return down == exact ? down : std::bit_cast<double>(std::bit_cast<u64>(down) | 1);
}
void integer_to_float(Warp& w, const Instruction& i) {
  const Type from = source_type(i), to = destination_type(i);
  const Rounding rounding = rounding_of(i.mode);
  for_lanes(w.active, [&](int l) {
    const u64 raw = read_integer(from, w, i.a, l, i.count & kWideSource);
    if (to == Type::f32) w.column<float>(i.d)[l] = integer_to_f32(raw, is_signed(from), rounding);
    else if (to == Type::f64) w.column<double>(i.d)[l] = integer_to_f64(raw, is_signed(from), rounding);
    else write_float(to, w, i.d, l, integer_to_odd(raw, is_signed(from)), rounding);
  });
}

template <class To, class From>
To converted(From value, bool saturates) {
  if (!saturates) return To(value);
  if (std::cmp_less(value, std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (std::cmp_greater(value, std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return To(value);
}
template <class To, class From>
void integer_to_integer(Warp& w, const Instruction& i) {
  for_lanes(w.active, [&](int l) {
    const From value = From(i.count & kWideSource ? w.column<u64>(i.a)[l] : w.column<u32>(i.a)[l]);
    const To result = converted<To>(value, i.mode & kSaturate);
    if (i.count & kWideDestination) w.column<u64>(i.d)[l] = u64(result);
    else w.column<u32>(i.d)[l] = u32(result);
  });
}

// A register may be wider than the type: of b8 and b16 there are no columns, and cvt reads the low bits of any integer.
std::int32_t column_of(Decoder& d, std::size_t operand, Type type, std::uint8_t& widths, std::uint8_t wide_bit) {
  const auto text = d.operand(operand);
  const bool is_register = text.starts_with('%');
  const bool is_wide = is_register && !is_float(type) ? d.width(text) == 8 : size_of(type) == 8;
  if (is_wide) widths |= wide_bit;
  return d.source(operand, is_wide ? Type::b64 : Type::b32);
}

void convert(Decoder& d, Instruction& out) {
  bool is_integral = false, has_rounding = false;
  constexpr std::string_view kModes[] = {"rn", "rz", "rm", "rp"}, kIntegral[] = {"rni", "rzi", "rmi", "rpi"};
  for (std::uint8_t k = 0; k < 4; ++k) {
    if (d.take(kModes[k])) out.mode = k, has_rounding = true;
    if (d.take(kIntegral[k])) out.mode = k, is_integral = true;
  }
  const bool away = d.take("rna");
  if (d.take("ftz")) out.mode |= kFlush;
  if (d.take("sat")) out.mode |= kSaturate;
  if (d.take("relu")) out.mode |= kRelu;
  const Type to = d.take_type(), from = d.take_type();
  out.immediate = std::int64_t(to) | std::int64_t(from) << 8;
  if (to == Type::bf16x2 || to == Type::f16x2) {
    out.d = d.destination(0, Type::b32);
    out.a = d.source(1, from);
    out.b = d.source(2, from);
    if (from == Type::f32) out.execute = to == Type::bf16x2 ? &floats_to_pair<true> : &floats_to_pair<false>;
    return;
  }
  out.a = column_of(d, 1, from, out.count, kWideSource);
  out.d = column_of(d, 0, to, out.count, kWideDestination);
  if (to == Type::tf32) {
    if (away && from == Type::f32) out.execute = &float_to_tf32;
  } else if (is_float(to) && is_float(from)) {
    if (is_integral) out.execute = &float_to_integral_float;
    else if (out.mode == 0 && from == Type::f32 && to == Type::bf16) out.execute = &float_to_bfloat;
    else if (out.mode == 0 && from == Type::f32 && to == Type::f16) out.execute = &float_to_half;
    else if (out.mode == 0 && from == Type::f16 && to == Type::f32) out.execute = &half_to_float;
    else if (out.mode == 0 && from == Type::bf16 && to == Type::f32) out.execute = &bfloat_to_float;
    else if (has_rounding || size_of(to) >= size_of(from)) out.execute = &float_to_float;
  } else if (is_float(from)) {
    if (is_integral) with_integer(to, [&]<class T>() { out.execute = &float_to_integer<T>; });
  } else if (is_float(to)) {
    if (has_rounding && !away) out.execute = &integer_to_float;
  } else {
    with_integer(to, [&]<class To>() {
      with_integer(from, [&]<class From>() { out.execute = &integer_to_integer<To, From>; });
    });
  }
}

}  // namespace

void add_conversions(Table& table) { table["cvt"] = &convert; }

}  // namespace refrain::emulator::ptx
