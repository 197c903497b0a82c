// ld, st and hints to caches. Alignment is checked as devices do; shared memory also for its bounds.
#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/memory_access.h>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// One element of type T to or from a register; small signed integers are extended to its width.
template <class T>
void put(Warp& w, std::int32_t column, bool is_wide, int lane, T value) {
  if constexpr (sizeof(T) == 8) {
    w.column<T>(column)[lane] = value;
  } else {
    if (is_wide) w.column<u64>(column)[lane] = u64(value);
    else w.column<u32>(column)[lane] = u32(value);
  }
}

constexpr std::uint8_t kWideRegister = 1;

template <class T, Space kSpace>
void load_one(Warp& w, const Instruction& i) {
  const bool is_wide = i.mode & kWideRegister;
  for_lanes(w.active, [&](int l) {
    T value;
    std::memcpy(&value, host_address<kSpace>(w, i, l, sizeof(T)), sizeof(T));
    put(w, i.d, is_wide, l, value);
  });
}
template <class T, Space kSpace>
void load_vector(Warp& w, const Instruction& i) {
  const bool is_wide = i.mode & kWideRegister;
  const std::int32_t* columns = w.list(i);
  for_lanes(w.active, [&](int l) {
    T values[8];
    std::memcpy(values, host_address<kSpace>(w, i, l, sizeof(T) * i.count), sizeof(T) * i.count);
    for (int k = 0; k < i.count; ++k) put(w, columns[k], is_wide, l, values[k]);
  });
}
template <class T, Space kSpace>
void store_one(Warp& w, const Instruction& i) {
  for_lanes(w.active, [&](int l) {
    const T value = T(i.mode & kWideRegister ? w.column<u64>(i.b)[l] : w.column<u32>(i.b)[l]);
    std::memcpy(host_address<kSpace>(w, i, l, sizeof(T)), &value, sizeof(T));
  });
}
template <class T, Space kSpace>
void store_vector(Warp& w, const Instruction& i) {
  const std::int32_t* columns = w.list(i);
  for_lanes(w.active, [&](int l) {
    T values[8];
    for (int k = 0; k < i.count; ++k)
      values[k] = T(i.mode & kWideRegister ? w.column<u64>(columns[k])[l] : w.column<u32>(columns[k])[l]);
    std::memcpy(host_address<kSpace>(w, i, l, sizeof(T) * i.count), values, sizeof(T) * i.count);
  });
}

template <Space kSpace>
Handler handler_of(Type type, bool is_load, bool is_vector) {
  Handler result = nullptr;
  with_integer(type, [&]<class T>() {
    result = is_load ? (is_vector ? &load_vector<T, kSpace> : &load_one<T, kSpace>)
                     : (is_vector ? &store_vector<T, kSpace> : &store_one<T, kSpace>);
  });
  return result;
}

// Floats are moved as bits.
Type as_bits(Type type) {
  switch (type) {
    case Type::f16: case Type::bf16: return Type::b16;
    case Type::f32: case Type::f16x2: case Type::bf16x2: return Type::b32;
    case Type::f64: return Type::b64;
    default: return type;
  }
}

// Hints and orders that change nothing where every access goes to one memory.
void take_hints(Decoder& d) {
  d.take_any("weak", "volatile", "relaxed", "acquire", "release", "nc", "mmio");
  d.take_any("cta", "cluster", "gpu", "sys");
  d.take_any("ca", "cg", "cs", "lu", "cv", "wb", "wt");
  d.take_any("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate");
  d.take_any("L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B", "unified");
}

template <bool kLoad>
void access(Decoder& d, Instruction& out) {
  const Space space = take_space(d);
  take_hints(d);
  const int count = d.take("v2") ? 2 : d.take("v4") ? 4 : d.take("v8") ? 8 : 1;
  const Type type = as_bits(d.take_type());
  const std::size_t value = kLoad ? 0 : 1;
  d.address(kLoad ? 1 : 0, out);
  const auto elements = d.elements(value);
  if (int(elements.size()) != count) d.refuse("the vector has another length");
  std::vector<std::int32_t> columns;
  for (const auto each : elements) {
    const bool is_wide = each.starts_with('%') ? d.width(each) == 8 : size_of(type) == 8;
    if (size_of(type) == 8 && !is_wide) d.refuse("the register is too narrow");
    if (is_wide) out.mode |= kWideRegister;
    columns.push_back(kLoad ? d.destination(each, is_wide ? Type::b64 : Type::b32)
                            : d.source(each, is_wide ? Type::b64 : Type::b32));
  }
  // Elements without a register ("_") have columns of the type's own width; all others must agree.
  for (const auto each : elements)
    if (each.starts_with('%') && (d.width(each) == 8) != bool(out.mode & kWideRegister)) d.refuse("registers of two widths");
  out.count = std::uint8_t(count);
  out.d = out.b = columns.front();
  if (count > 1) out.list = d.list(columns);
  out.execute = space == Space::shared ? handler_of<Space::shared>(type, kLoad, count > 1)
                                       : handler_of<Space::generic>(type, kLoad, count > 1);
}

void nothing(Warp&, const Instruction&) {}

void prefetch(Decoder& d, Instruction& out) {
  take_space(d);
  d.take_any("L1", "L2", "L2::evict_last", "L2::evict_normal");
  d.address(0, out);
  out.execute = &nothing;
}

}  // namespace

Space take_space(Decoder& d) {
  constexpr std::pair<std::string_view, Space> kSpaces[] = {
      {"global", Space::global}, {"shared::cta", Space::shared}, {"shared", Space::shared}, {"local", Space::local},
      {"param", Space::param}, {"param::entry", Space::param}, {"param::func", Space::param}, {"const", Space::constant}};
  for (const auto& [name, space] : kSpaces)
    if (d.take(name)) return space;
  return Space::generic;
}

void add_memory(Table& table) {
  table["ld"] = &access<true>;
  table["ldu"] = &access<true>;
  table["st"] = &access<false>;
  table["prefetch"] = &prefetch;
  table["prefetchu"] = &prefetch;
}

}  // namespace refrain::emulator::ptx
