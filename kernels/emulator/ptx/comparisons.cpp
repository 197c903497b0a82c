// setp and set: comparisons of every type, joined with a predicate where asked.
#include <refrain/core/half.h>
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/rounding.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <array>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;

enum Relation : std::uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
constexpr std::string_view kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                       "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
enum Join : std::uint8_t { none, join_and, join_or, join_xor };

template <class T>
bool holds(Relation relation, T a, T b) {
  const bool unordered = a != a || b != b;
  switch (relation) {
    case eq: return a == b;
    case ne: return !unordered && a != b;
    case lt: return a < b;
    case le: return a <= b;
    case gt: return a > b;
    case ge: return a >= b;
    case equ: return unordered || a == b;
    case neu: return unordered || a != b;
    case ltu: return unordered || a < b;
    case leu: return unordered || a <= b;
    case gtu: return unordered || a > b;
    case geu: return unordered || a >= b;
    case num: return !unordered;
    case nan: return unordered;
  }
  return false;
}

// What a 16-bit float compares as.
template <class T>
auto comparable(T x) {
  if constexpr (std::is_same_v<T, Half>) return half_bits::f16_to_float(x.bits);
  else if constexpr (std::is_same_v<T, BFloat>) return half_bits::bf16_to_float(x.bits);
  else return x;
}

template <class T, Relation kRelation>
u32 compare(Warp& w, const Instruction& i) {
  const Slot<T>*a = w.column<Slot<T>>(i.a), *b = w.column<Slot<T>>(i.b);
  u32 result = 0;
  for (int l = 0; l < 32; ++l)
    result |= u32(holds(kRelation, comparable(from_slot<T>(a[l])), comparable(from_slot<T>(b[l])))) << l;
  return result;
}
// f32 with subnormals taken for zero.
template <Relation kRelation>
u32 compare_flushed(Warp& w, const Instruction& i) {
  const u32 *a = w.column<u32>(i.a), *b = w.column<u32>(i.b);
  u32 result = 0;
  for (int l = 0; l < 32; ++l)
    result |= u32(holds(kRelation, flushed(std::bit_cast<float>(a[l])), flushed(std::bit_cast<float>(b[l])))) << l;
  return result;
}

u32 joined(Warp& w, const Instruction& i, u32 result) {
  if (i.mode == none) return result;
  const u32 other = i.is_negated ? ~w.predicate(i.c) : w.predicate(i.c);
  return i.mode == join_and ? result & other : i.mode == join_or ? result | other : result ^ other;
}

template <u32 (*kCompare)(Warp&, const Instruction&)>
void set_predicates(Warp& w, const Instruction& i) {
  const u32 result = kCompare(w, i);
  if (i.d2 >= 0) w.set_predicate(i.d2, joined(w, i, ~result));
  w.set_predicate(i.d, joined(w, i, result));
}

// set.CmpOp.dtype: all ones, or 1.0, where it holds.
template <u32 (*kCompare)(Warp&, const Instruction&)>
void set_values(Warp& w, const Instruction& i) {
  const u32 result = joined(w, i, kCompare(w, i));
  u32* d = w.column<u32>(i.d);
  for_lanes(w.active, [&](int l) { d[l] = result >> l & 1 ? u32(i.immediate) : 0; });
}

template <template <u32 (*)(Warp&, const Instruction&)> class Wrap, class T, std::size_t... kEach>
constexpr auto handlers_of(std::index_sequence<kEach...>) {
  return std::array<Handler, sizeof...(kEach)>{Wrap<&compare<T, Relation(kEach)>>::handler...};
}
template <u32 (*kCompare)(Warp&, const Instruction&)>
struct Predicates {
  static constexpr Handler handler = &set_predicates<kCompare>;
};
template <u32 (*kCompare)(Warp&, const Instruction&)> struct Values { static constexpr Handler handler = &set_values<kCompare>; };
using AllRelations = std::make_index_sequence<std::size(kNames)>;

template <std::size_t... kEach>
constexpr auto flushed_handlers(std::index_sequence<kEach...>) {
  return std::array<Handler, sizeof...(kEach)>{&set_predicates<&compare_flushed<Relation(kEach)>>...};
}

Relation take_relation(Decoder& d, Type type) {
  // Unsigned comparisons have names of their own.
  for (const auto& [name, relation] : {std::pair{"lo", lt}, {"ls", le}, {"hi", gt}, {"hs", ge}})
    if (d.take(name)) return relation;
  for (std::size_t k = 0; k < std::size(kNames); ++k)
    if (d.take(kNames[k])) {
      const bool is_float = type == Type::f32 || type == Type::f64 || type == Type::f16 || type == Type::bf16 ||
                            type == Type::f16x2 || type == Type::bf16x2;
      if (k >= equ && !is_float) d.refuse("for floats only");
      return Relation(k);
    }
  d.refuse("a comparison is missing");
}

Join take_join(Decoder& d) { return d.take("and") ? join_and : d.take("or") ? join_or : d.take("xor") ? join_xor : none; }

template <template <u32 (*)(Warp&, const Instruction&)> class Wrap>
Handler handler_for(Type type, Relation relation) {
  Handler result = nullptr;
  with_integer(type, [&]<class T>() { result = handlers_of<Wrap, T>(AllRelations{})[relation]; });
  if (type == Type::f32) result = handlers_of<Wrap, float>(AllRelations{})[relation];
  if (type == Type::f64) result = handlers_of<Wrap, double>(AllRelations{})[relation];
  if (type == Type::f16) result = handlers_of<Wrap, Half>(AllRelations{})[relation];
  if (type == Type::bf16) result = handlers_of<Wrap, BFloat>(AllRelations{})[relation];
  return result;
}

// Pairs of 16-bit floats: d is for the low half, d2 for the high one.
template <class T>
void set_pair(Warp& w, const Instruction& i) {
  const u32 *a = w.column<u32>(i.a), *b = w.column<u32>(i.b);
  u32 low = 0, high = 0;
  for (int l = 0; l < 32; ++l) {
    const auto x = [&](u32 bits) { return comparable(from_slot<T>(bits)); };
    low |= u32(holds(Relation(i.immediate), x(a[l]), x(b[l]))) << l;
    high |= u32(holds(Relation(i.immediate), x(a[l] >> 16), x(b[l] >> 16))) << l;
  }
  w.set_predicate(i.d2, joined(w, i, high));
  w.set_predicate(i.d, joined(w, i, low));
}

// set.CmpOp.f16x2.f16x2: 1.0, or all ones of the half, where it holds; `count` tells which.
template <class T>
void set_pair_values(Warp& w, const Instruction& i) {
  const u32 one = i.count ? 0xffff : std::is_same_v<T, Half> ? 0x3c00 : 0x3f80;
  map2<u32, u32, u32>(w, i, [&](u32 a, u32 b) {
    const auto x = [&](u32 bits) { return comparable(from_slot<T>(bits)); };
    return (holds(Relation(i.immediate), x(a), x(b)) ? one : 0) |
           (holds(Relation(i.immediate), x(a >> 16), x(b >> 16)) ? one << 16 : 0);
  });
}

void set_predicate(Decoder& d, Instruction& out) {
  out.mode = take_join(d);
  const bool flushes = d.take("ftz");
  const Type type = d.take_type();
  const Relation relation = take_relation(d, type);
  const auto [first, second] = d.pair(0);
  out.d = d.destination(first, Type::pred);
  out.d2 = d.destination(second, Type::pred);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (out.mode != none) out.c = d.predicate(3, out.is_negated);
  if (type == Type::f16x2 || type == Type::bf16x2) {
    out.immediate = relation;
    out.execute = type == Type::f16x2 ? &set_pair<Half> : &set_pair<BFloat>;
  } else if (flushes && type == Type::f32) {
    out.execute = flushed_handlers(AllRelations{})[relation];
  } else {
    out.execute = handler_for<Predicates>(type, relation);
  }
}

void set_value(Decoder& d, Instruction& out) {
  out.mode = take_join(d);
  d.take("ftz");
  const Type result = d.take_type(), type = d.take_type();
  const Relation relation = take_relation(d, type);
  out.d = d.destination(0, result);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (out.mode != none) out.c = d.predicate(3, out.is_negated);
  if (type == Type::f16x2 || type == Type::bf16x2) {
    if (out.mode != none) d.refuse("no joined pairs");
    out.immediate = relation;
    out.count = result != type;  // u32 or s32: all ones
    out.execute = type == Type::f16x2 ? &set_pair_values<Half> : &set_pair_values<BFloat>;
    return;
  }
  switch (result) {
    case Type::u32: case Type::s32: out.immediate = 0xffffffff; break;
    case Type::u16: case Type::s16: out.immediate = 0xffff; break;
    case Type::f32: out.immediate = 0x3f800000; break;
    case Type::f16: out.immediate = 0x3c00; break;
    case Type::bf16: out.immediate = 0x3f80; break;
    default: d.refuse("result type");
  }
  out.execute = handler_for<Values>(type, relation);
}

}  // namespace

void add_comparisons(Table& table) {
  table["setp"] = &set_predicate;
  table["set"] = &set_value;
}

}  // namespace refrain::emulator::ptx
