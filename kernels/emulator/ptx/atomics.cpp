// atom and red, on global and shared memory. Lanes go in order; blocks may run on several host threads, so every update is a
// compare-and-swap loop.
#include <refrain/kernels/emulator/ptx/memory_access.h>
#include <refrain/kernels/emulator/ptx/rounding.h>

#include <algorithm>
#include <atomic>

namespace refrain::emulator::ptx {

namespace {

template <std::size_t kBytes>
using Bits = std::conditional_t<kBytes == 8, std::uint64_t, std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>;

struct Add { template <class T> T operator()(T old, T b, T) const { return T(old + b); } };
struct Minimum { template <class T> T operator()(T old, T b, T) const { return std::min(old, b); } };
struct Maximum { template <class T> T operator()(T old, T b, T) const { return std::max(old, b); } };
struct Increment { template <class T> T operator()(T old, T b, T) const { return old >= b ? T(0) : T(old + 1); } };
struct Decrement { template <class T> T operator()(T old, T b, T) const { return old == 0 || old > b ? b : T(old - 1); } };
struct Exchange { template <class T> T operator()(T, T b, T) const { return b; } };
struct CompareAndSwap { template <class T> T operator()(T old, T b, T c) const { return old == b ? c : old; } };
struct And { template <class T> T operator()(T old, T b, T) const { return T(old & b); } };
struct Or { template <class T> T operator()(T old, T b, T) const { return T(old | b); } };
struct Xor { template <class T> T operator()(T old, T b, T) const { return T(old ^ b); } };

template <class T, class Op, Space kSpace>
void update(Warp& w, const Instruction& i) {
  using U = Bits<sizeof(T)>;
  for_lanes(w.active, [&](int l) {
    std::atomic_ref<U> memory(*reinterpret_cast<U*>(host_address<kSpace>(w, i, l, sizeof(T))));
    const T b = from_slot<T>(w.column<Slot<T>>(i.b)[l]), c = from_slot<T>(w.column<Slot<T>>(i.c)[l]);
    U old = memory.load();
    while (!memory.compare_exchange_weak(old, U(to_slot<T>(Op{}(from_slot<T>(old), b, c))))) {}
    if (i.d >= 0) w.column<Slot<T>>(i.d)[l] = old;
  });
}

template <Space kSpace>
Handler handler_of(std::string_view op, Type type) {
  Handler result = nullptr;
  const auto choose = [&]<class T>() {
    if (op == "add") result = &update<T, Add, kSpace>;
    if constexpr (!std::is_floating_point_v<T>) {
      if (op == "min") result = &update<T, Minimum, kSpace>;
      if (op == "max") result = &update<T, Maximum, kSpace>;
      if (op == "inc") result = &update<T, Increment, kSpace>;
      if (op == "dec") result = &update<T, Decrement, kSpace>;
      if (op == "exch") result = &update<T, Exchange, kSpace>;
      if (op == "cas") result = &update<T, CompareAndSwap, kSpace>;
      if (op == "and") result = &update<T, And, kSpace>;
      if (op == "or") result = &update<T, Or, kSpace>;
      if (op == "xor") result = &update<T, Xor, kSpace>;
    }
  };
  switch (type) {
    case Type::f32: choose.template operator()<float>(); break;
    case Type::f64: choose.template operator()<double>(); break;
    case Type::s32: choose.template operator()<std::int32_t>(); break;
    case Type::s64: choose.template operator()<std::int64_t>(); break;
    case Type::u32: case Type::b32: choose.template operator()<std::uint32_t>(); break;
    case Type::u64: case Type::b64: choose.template operator()<std::uint64_t>(); break;
    case Type::b16: if (op == "cas" || op == "exch") choose.template operator()<std::uint16_t>(); break;
    default: break;
  }
  return result;
}

template <bool kReturns>
void atomic(Decoder& d, Instruction& out) {
  d.take_any("relaxed", "acquire", "release", "acq_rel");
  const Space space = take_space(d);
  d.take_any("cta", "cluster", "gpu", "sys");
  std::string_view op;
  for (const std::string_view each : {"add", "min", "max", "inc", "dec", "exch", "cas", "and", "or", "xor"})
    if (d.take(each)) op = each;
  if (op.empty()) d.refuse("an operation is missing");
  const Type type = d.take_type();
  const std::size_t address = kReturns ? 1 : 0;
  if (kReturns) out.d = d.destination(0, type);
  d.address(address, out);
  out.b = d.source(address + 1, type);
  out.c = op == "cas" ? d.source(address + 2, type) : out.b;
  out.execute = space == Space::shared ? handler_of<Space::shared>(op, type) : handler_of<Space::generic>(op, type);
}

}  // namespace

void add_atomics(Table& table) {
  table["atom"] = &atomic<true>;
  table["red"] = &atomic<false>;
}

}  // namespace refrain::emulator::ptx
