// Operations between the lanes of a warp: shfl, vote, match, redux, activemask, elect.
#include <refrain/kernels/emulator/ptx/collective.h>
#include <refrain/kernels/emulator/ptx/control.h>
#include <refrain/kernels/emulator/ptx/decode.h>

#include <algorithm>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

enum Shuffle : std::uint8_t { up, down, bfly, idx };

// The lane that `lane` reads, and whether it lies in its segment; else it reads its own.
std::pair<int, bool> shuffle_source(std::uint8_t mode, int lane, u32 b, u32 c) {
  const int offset = int(b & 31), clamp = int(c & 31), segment = int(c >> 8 & 31);
  const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  int source;
  bool is_inside;
  switch (mode) {
    case up: source = lane - offset, is_inside = source >= last; break;
    case down: source = lane + offset, is_inside = source <= last; break;
    case bfly: source = lane ^ offset, is_inside = source <= last; break;
    default: source = first | (offset & ~segment), is_inside = source <= last;
  }
  return {is_inside ? source : lane, is_inside};
}

void shuffle_lanes(Warp& w, const Instruction& i) {
  const u32 *b = w.column<u32>(i.b), *c = w.column<u32>(i.c);
  gather_lanes(w, i, i.e, [&](u32 members) {
    const u32* values = w.column<u32>(i.a);
    u32 results[32], inside = 0;
    for_lanes(members, [&](int l) {
      const auto [source, is_inside] = shuffle_source(i.mode, l, b[l], c[l]);
      if (!(members >> source & 1)) w.fail(i, l, "reads lane " + std::to_string(source) + ", which takes no part");
      results[l] = values[source];
      inside |= u32(is_inside) << l;
    });
    u32* d = w.column<u32>(i.d);
    for_lanes(members, [&](int l) { d[l] = results[l]; });
    if (i.d2 >= 0) w.predicate(i.d2) = (w.predicate(i.d2) & ~members) | (inside & members);
  });
}
void shuffle(Decoder& d, Instruction& out) {
  if (!d.take("sync")) d.refuse("sync is missing");
  out.mode = d.take("up") ? up : d.take("down") ? down : d.take("bfly") ? bfly : d.take("idx") ? idx : 255;
  if (out.mode == 255) d.refuse("a mode is missing");
  const Type type = d.take_type();
  const auto [value, is_inside] = d.pair(0);
  out.d = d.destination(value, type);
  out.d2 = d.destination(is_inside, Type::pred);
  out.a = d.source(1, type);
  out.b = d.source(2, Type::u32);
  out.c = d.source(3, Type::u32);
  out.e = d.source(4, Type::u32);
  out.execute = &shuffle_lanes;
}

enum Vote : std::uint8_t { all, any, uni, ballot };

void vote_lanes(Warp& w, const Instruction& i) {
  gather_lanes(w, i, i.e, [&](u32 members) {
    const u32 bits = (i.is_negated ? ~w.predicate(i.c) : w.predicate(i.c)) & members;
    if (i.mode == ballot) {
      u32* d = w.column<u32>(i.d);
      for_lanes(members, [&](int l) { d[l] = bits; });
      return;
    }
    const bool result = i.mode == all ? bits == members : i.mode == any ? bits != 0 : bits == 0 || bits == members;
    w.predicate(i.d) = (w.predicate(i.d) & ~members) | (result ? members : 0);
  });
}
void vote(Decoder& d, Instruction& out) {
  if (!d.take("sync")) d.refuse("sync is missing");
  out.mode = d.take("all") ? all : d.take("any") ? any : d.take("uni") ? uni : d.take("ballot") ? ballot : 255;
  if (out.mode == 255) d.refuse("a mode is missing");
  out.d = d.destination(0, d.take_type());
  out.c = d.predicate(1, out.is_negated);
  out.e = d.source(2, Type::u32);
  out.execute = &vote_lanes;
}

template <class S>
void match_lanes(Warp& w, const Instruction& i) {
  gather_lanes(w, i, i.e, [&](u32 members) {
    S values[32];
    std::memcpy(values, w.column<S>(i.a), sizeof values);
    u32* d = w.column<u32>(i.d);
    u32 same_everywhere = members;
    for_lanes(members, [&](int l) {
      u32 same = 0;
      for_lanes(members, [&](int other) { same |= u32(values[other] == values[l]) << other; });
      if (same != members) same_everywhere = 0;
      if (i.mode == any) d[l] = same;
    });
    if (i.mode == any) return;
    for_lanes(members, [&](int l) { d[l] = same_everywhere; });
    if (i.d2 >= 0) w.predicate(i.d2) = (w.predicate(i.d2) & ~members) | same_everywhere;
  });
}
void match(Decoder& d, Instruction& out) {
  out.mode = d.take("any") ? any : d.take("all") ? all : 255;
  if (!d.take("sync") || out.mode == 255) d.refuse("sync and a mode");
  const Type type = d.take_type();
  const auto [mask, is_same] = d.pair(0);
  out.d = d.destination(mask, Type::u32);
  out.d2 = d.destination(is_same, Type::pred);
  out.a = d.source(1, type);
  out.e = d.source(2, Type::u32);
  out.execute = size_of(type) == 8 ? &match_lanes<u64> : &match_lanes<u32>;
}

template <class T, class Op>
void reduce_lanes(Warp& w, const Instruction& i) {
  gather_lanes(w, i, i.e, [&](u32 members) {
    u32* d = w.column<u32>(i.d);
    const u32* a = w.column<u32>(i.a);
    T result = T(a[std::countr_zero(members)]);
    for_lanes(members & (members - 1), [&](int l) { result = Op{}(result, T(a[l])); });
    for_lanes(members, [&](int l) { d[l] = u32(result); });
  });
}
struct Add { template <class T> T operator()(T a, T b) const { return T(u32(a) + u32(b)); } };
struct Minimum { template <class T> T operator()(T a, T b) const { return std::min(a, b); } };
struct Maximum { template <class T> T operator()(T a, T b) const { return std::max(a, b); } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };

void reduce(Decoder& d, Instruction& out) {
  if (!d.take("sync")) d.refuse("sync is missing");
  const Handler chosen = d.take("add")   ? &reduce_lanes<u32, Add>
                         : d.take("and") ? &reduce_lanes<u32, And>
                         : d.take("or")  ? &reduce_lanes<u32, Or>
                         : d.take("xor") ? &reduce_lanes<u32, Xor>
                                         : nullptr;
  const bool is_minimum = d.take("min"), is_maximum = d.take("max");
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.e = d.source(2, Type::u32);
  out.execute = chosen;
  if (is_minimum) out.execute = type == Type::s32 ? &reduce_lanes<std::int32_t, Minimum> : &reduce_lanes<u32, Minimum>;
  if (is_maximum) out.execute = type == Type::s32 ? &reduce_lanes<std::int32_t, Maximum> : &reduce_lanes<u32, Maximum>;
}

void active_mask(Decoder& d, Instruction& out) {
  out.d = d.destination(0, d.take_type());
  out.execute = [](Warp& w, const Instruction& i) {
    u32* column = w.column<u32>(i.d);
    for_lanes(w.active, [&](int l) { column[l] = w.active; });
  };
}

void elect(Decoder& d, Instruction& out) {
  if (!d.take("sync")) d.refuse("sync is missing");
  const auto [leader, is_leader] = d.pair(0);
  out.d = d.destination(leader, Type::u32);
  out.d2 = d.destination(is_leader, Type::pred);
  out.e = d.source(1, Type::u32);
  out.execute = [](Warp& w, const Instruction& i) {
    gather_lanes(w, i, i.e, [&](u32 members) {
      u32* column = w.column<u32>(i.d);
      const int first = std::countr_zero(members);
      for_lanes(members, [&](int l) { column[l] = u32(first); });
      w.predicate(i.d2) = (w.predicate(i.d2) & ~members) | 1u << first;
    });
  };
}

void meet(Warp& w, const Instruction& i) {
  gather_lanes(w, i, i.a, [](u32) {});
}

}  // namespace

Handler warp_barrier() { return &meet; }

void add_warp(Table& table) {
  table["shfl"] = &shuffle;
  table["vote"] = &vote;
  table["match"] = &match;
  table["redux"] = &reduce;
  table["activemask"] = &active_mask;
  table["elect"] = &elect;
}

}  // namespace refrain::emulator::ptx
