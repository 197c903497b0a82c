// A warp at work: its register file, which of its lanes stand where, and loops over the lanes that take part.
//
// Lanes run in step. Where they part, the group that stands lowest in the code goes on first, so groups meet again where
// structured code joins; a group that reaches a warp-wide operation waits until every lane of its mask stands there.
#pragma once

#include <refrain/kernels/emulator/ptx/module.h>

#include <bit>
#include <cstring>

namespace refrain::emulator::ptx {

inline constexpr std::uint32_t kAllLanes = 0xffffffffu;

class BlockRun;

// Lanes that stand at the same instruction.
struct Group {
  std::uint32_t pc = 0, lanes = 0;
  enum State : std::uint8_t { ready, at_barrier, waiting } state = ready;
};

struct AsyncCopy {
  std::byte* destination;
  const std::byte* source;
  std::uint32_t bytes, source_bytes, batch;
  int lane;
};

class Warp {
 public:
  // Of the group at work.
  std::uint32_t active = 0;     // its lanes whose guard holds
  std::uint32_t group_lanes = 0;
  std::uint32_t pc = 0;         // the next instruction; a handler may change it
  std::uint32_t carry = 0;      // the condition code of add.cc, one bit a lane
  bool must_choose = false;     // set by a handler after which another group may be at work

  const Function* function = nullptr;
  BlockRun* block = nullptr;
  std::byte* registers = nullptr;
  int index = 0;

  std::vector<Group> groups;    // all but the one at work
  std::vector<AsyncCopy> copies;
  std::uint32_t batches[32] = {};
  std::vector<std::byte> local;

  template <class Slot> Slot* column(std::int32_t offset) const { return reinterpret_cast<Slot*>(registers + offset); }
  std::uint32_t& predicate(std::int32_t offset) const { return *column<std::uint32_t>(offset); }
  void set_predicate(std::int32_t offset, std::uint32_t bits) const {
    if (offset < 0) return;
    std::uint32_t& old = predicate(offset);
    old = (old & ~active) | (bits & active);
  }
  std::uint64_t address(const Instruction& i, int lane) const {
    return (i.is_wide ? column<std::uint64_t>(i.a)[lane] : column<std::uint32_t>(i.a)[lane]) + std::uint64_t(i.immediate);
  }
  const std::int32_t* list(const Instruction& i) const { return function->lists.data() + i.list; }
  [[noreturn]] void fail(const Instruction& i, int lane, const std::string& why) const;

  void park(Group::State state, std::uint32_t at, std::uint32_t lanes);  // takes lanes of the group at work out of it
  // Whether every living lane of `mask` stands here; if not, the group waits and the instruction is tried again.
  bool gather(const Instruction& i, std::uint32_t mask);
  std::uint32_t living() const;
};

// ---- values and the slots of 4 or 8 bytes they lie in; small integers may have anything above their own bits

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

template <class T> using Slot = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <class T>
inline T from_slot(Slot<T> slot) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(slot);
  else if constexpr (sizeof(T) == 2) return T{static_cast<std::uint16_t>(slot)};
  else return std::bit_cast<T>(slot);
}
template <class T>
inline Slot<T> to_slot(T value) {
  if constexpr (std::is_integral_v<T>) return static_cast<Slot<T>>(static_cast<std::make_unsigned_t<T>>(value));
  else if constexpr (sizeof(T) == 2) return value.bits;
  else return std::bit_cast<Slot<T>>(value);
}

// ---- loops over the lanes at work

template <class F>
inline void for_lanes(std::uint32_t lanes, F&& f) {
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < 32; ++lane) f(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
  }
}

template <class R, class A, class F>
inline void map1(Warp& w, const Instruction& i, F&& f) {
  Slot<R>* d = w.column<Slot<R>>(i.d);
  const Slot<A>* a = w.column<Slot<A>>(i.a);
  for_lanes(w.active, [&](int l) { d[l] = to_slot<R>(f(from_slot<A>(a[l]))); });
}
template <class R, class A, class B, class F>
inline void map2(Warp& w, const Instruction& i, F&& f) {
  Slot<R>* d = w.column<Slot<R>>(i.d);
  const Slot<A>* a = w.column<Slot<A>>(i.a);
  const Slot<B>* b = w.column<Slot<B>>(i.b);
  for_lanes(w.active, [&](int l) { d[l] = to_slot<R>(f(from_slot<A>(a[l]), from_slot<B>(b[l]))); });
}
template <class R, class A, class B, class C, class F>
inline void map3(Warp& w, const Instruction& i, F&& f) {
  Slot<R>* d = w.column<Slot<R>>(i.d);
  const Slot<A>* a = w.column<Slot<A>>(i.a);
  const Slot<B>* b = w.column<Slot<B>>(i.b);
  const Slot<C>* c = w.column<Slot<C>>(i.c);
  for_lanes(w.active, [&](int l) { d[l] = to_slot<R>(f(from_slot<A>(a[l]), from_slot<B>(b[l]), from_slot<C>(c[l]))); });
}

// The C++ type of a PTX type: f is called as f.operator()<T>(). False when the type is none of the group.
template <class F>
bool with_integer(Type type, F&& f) {
  switch (type) {
    case Type::u8: case Type::b8: f.template operator()<std::uint8_t>(); return true;
    case Type::s8: f.template operator()<std::int8_t>(); return true;
    case Type::u16: case Type::b16: f.template operator()<std::uint16_t>(); return true;
    case Type::u32: case Type::b32: f.template operator()<std::uint32_t>(); return true;
    case Type::u64: case Type::b64: f.template operator()<std::uint64_t>(); return true;
    case Type::s16: f.template operator()<std::int16_t>(); return true;
    case Type::s32: f.template operator()<std::int32_t>(); return true;
    case Type::s64: f.template operator()<std::int64_t>(); return true;
    default: return false;
  }
}

inline bool is_signed(Type type) { return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64; }

}  // namespace refrain::emulator::ptx
