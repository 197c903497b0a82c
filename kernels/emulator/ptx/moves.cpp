// mov, its packing and unpacking of vectors, selections, and conversions between address spaces.
#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/decode.h>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class S>
void copy_lanes(Warp& w, const Instruction& i) {
  S* d = w.column<S>(i.d);
  const S* a = w.column<S>(i.a);
  for_lanes(w.active, [&](int l) { d[l] = a[l]; });
}

// Sources and destinations of 16, 32 or 64 bits in any mix: one register of `whole` bytes, and `count` parts of it.
u64 read_slot(const Warp& w, std::int32_t column, int lane, std::size_t bytes) {
  const u64 value = bytes == 8 ? w.column<u64>(column)[lane] : w.column<u32>(column)[lane];
  return bytes >= 8 ? value : value & ((u64(1) << (8 * bytes)) - 1);
}
void write_slot(const Warp& w, std::int32_t column, int lane, std::size_t bytes, u64 value) {
  if (bytes == 8) w.column<u64>(column)[lane] = value;
  else w.column<u32>(column)[lane] = u32(value & ((u64(1) << (8 * bytes)) - 1));
}

void pack(Warp& w, const Instruction& i) {
  const std::size_t whole = std::size_t(i.immediate), part = whole / i.count;
  for_lanes(w.active, [&](int l) {
    u64 value = 0;
    for (std::size_t k = 0; k < i.count; ++k) value |= read_slot(w, w.list(i)[k], l, part) << (8 * part * k);
    write_slot(w, i.d, l, whole, value);
  });
}
void unpack(Warp& w, const Instruction& i) {
  const std::size_t whole = std::size_t(i.immediate), part = whole / i.count;
  for_lanes(w.active, [&](int l) {
    const u64 value = read_slot(w, i.a, l, whole);
    for (std::size_t k = 0; k < i.count; ++k)
      write_slot(w, w.list(i)[k], l, part, value >> (8 * part * k));
  });
}

Type part_type(Decoder& d, Type type, std::size_t count) {
  switch (size_of(type) / count) {
    case 1: return Type::b8;
    case 2: return Type::b16;
    case 4: return Type::b32;
    default: d.refuse("parts of this size");
  }
}

void move(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  const auto destinations = d.elements(0), sources = d.elements(1);
  out.immediate = std::int64_t(size_of(type));
  if (destinations.size() > 1 || d.operand(0).starts_with('{')) {
    const Type part = part_type(d, type, destinations.size());
    std::vector<std::int32_t> columns;
    for (const auto each : destinations) columns.push_back(d.destination(each, part));
    out.list = d.list(columns);
    out.count = std::uint8_t(columns.size());
    out.a = d.source(1, type);
    out.execute = &unpack;
  } else if (sources.size() > 1 || d.operand(1).starts_with('{')) {
    const Type part = part_type(d, type, sources.size());
    std::vector<std::int32_t> columns;
    for (const auto each : sources) columns.push_back(d.source(each, part));
    out.list = d.list(columns);
    out.count = std::uint8_t(columns.size());
    out.d = d.destination(0, type);
    out.execute = &pack;
  } else {
    out.d = d.destination(0, type);
    out.a = d.source(1, type);
    if (type == Type::pred) out.execute = [](Warp& w, const Instruction& i) { w.set_predicate(i.d, w.predicate(i.a)); };
    else out.execute = size_of(type) == 8 ? &copy_lanes<u64> : &copy_lanes<u32>;
  }
}

template <class S>
void select_lanes(Warp& w, const Instruction& i) {
  S* d = w.column<S>(i.d);
  const S *a = w.column<S>(i.a), *b = w.column<S>(i.b);
  const u32 chosen = i.is_negated ? ~w.predicate(i.c) : w.predicate(i.c);
  for_lanes(w.active, [&](int l) { d[l] = chosen >> l & 1 ? a[l] : b[l]; });
}
void select(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.predicate(3, out.is_negated);
  out.execute = size_of(type) == 8 ? &select_lanes<u64> : &select_lanes<u32>;
}

// a where c >= 0, else b.
template <class S, class C>
void select_by_sign(Warp& w, const Instruction& i) {
  map3<S, S, S, C>(w, i, [](S a, S b, C c) { return c >= 0 ? a : b; });
}
void select_compare(Decoder& d, Instruction& out) {
  d.take("ftz");
  const Type type = d.take_type(), by = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, by);
  if (by == Type::s32) out.execute = size_of(type) == 8 ? &select_by_sign<u64, std::int32_t> : &select_by_sign<u32, std::int32_t>;
  if (by == Type::f32) out.execute = size_of(type) == 8 ? &select_by_sign<u64, float> : &select_by_sign<u32, float>;
}

// Shared addresses are offsets into the block's shared memory; addresses of all other spaces are the host's own.
template <int kSign>
void shift_shared(Warp& w, const Instruction& i) {
  const u64 base = reinterpret_cast<u64>(w.block->shared());
  map1<u64, u64>(w, i, [&](u64 a) { return kSign > 0 ? a + base : a - base; });
}
void convert_address(Decoder& d, Instruction& out) {
  const bool to_space = d.take("to"), is_shared = d.take("shared");
  d.take("cta");
  d.take_any("global", "local", "const", "param");
  const Type type = d.take_type();
  if (size_of(type) != 8) d.refuse("64-bit addresses only");
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.execute = !is_shared ? &copy_lanes<u64> : to_space ? &shift_shared<-1> : &shift_shared<+1>;
}

void is_in_space(Decoder& d, Instruction& out) {
  const bool is_shared = d.take("shared"), is_global = d.take("global");
  d.take("cta");
  if (!is_shared && !is_global) d.refuse("shared or global");
  out.d = d.destination(0, Type::pred);
  out.a = d.source(1, Type::u64);
  out.mode = is_shared;
  out.execute = [](Warp& w, const Instruction& i) {
    const u64* a = w.column<u64>(i.a);
    u32 result = 0;
    for (int l = 0; l < 32; ++l)
      result |= u32(w.block->holds_shared(reinterpret_cast<const std::byte*>(a[l])) == bool(i.mode)) << l;
    w.set_predicate(i.d, result);
  };
}

}  // namespace

void add_moves(Table& table) {
  table["mov"] = &move;
  table["selp"] = &select;
  table["slct"] = &select_compare;
  table["cvta"] = &convert_address;
  table["isspacep"] = &is_in_space;
}

}  // namespace refrain::emulator::ptx
