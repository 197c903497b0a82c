// Bits: logic, shifts, fields, counting, byte permutation.
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/warp.h>

#include <algorithm>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct And { template <class T> T operator()(T a, T b) const { return T(a & b); } };
struct Or { template <class T> T operator()(T a, T b) const { return T(a | b); } };
struct Xor { template <class T> T operator()(T a, T b) const { return T(a ^ b); } };

template <class Op>
void logic(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  if (type == Type::pred)
    out.execute = [](Warp& w, const Instruction& i) { w.set_predicate(i.d, Op{}(w.predicate(i.a), w.predicate(i.b))); };
  else
    with_integer(type, [&]<class T>() { out.execute = [](Warp& w, const Instruction& i) { map2<T, T, T>(w, i, Op{}); }; });
}

void invert(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  if (type == Type::pred) out.execute = [](Warp& w, const Instruction& i) { w.set_predicate(i.d, ~w.predicate(i.a)); };
  else
    with_integer(type, [&]<class T>() {
      out.execute = [](Warp& w, const Instruction& i) { map1<T, T>(w, i, [](T a) { return T(~a); }); };
    });
}

void logical_not(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  with_integer(type, [&]<class T>() {
    out.execute = [](Warp& w, const Instruction& i) { map1<T, T>(w, i, [](T a) { return T(a == 0); }); };
  });
}

// Any function of three bits: bit (a, b, c) of the table.
void logic3(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  if (type != Type::b32) d.refuse("only b32");
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, type);
  out.immediate = std::int64_t(d.number(4));
  out.execute = [](Warp& w, const Instruction& i) {
    map3<u32, u32, u32, u32>(w, i, [&](u32 a, u32 b, u32 c) {
      u32 result = 0;
      for (int bit = 0; bit < 8; ++bit)
        if (i.immediate >> bit & 1) result |= (bit & 4 ? a : ~a) & (bit & 2 ? b : ~b) & (bit & 1 ? c : ~c);
      return result;
    });
  };
}

// The amount is 32 bits wide whatever is shifted; amounts beyond the width shift everything out.
template <bool kLeft>
void shift(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, Type::u32);
  with_integer(type, [&]<class T>() {
    out.execute = [](Warp& w, const Instruction& i) {
      map2<T, T, u32>(w, i, [](T a, u32 amount) {
        constexpr u32 kBits = 8 * sizeof(T);
        if constexpr (kLeft) return amount >= kBits ? T(0) : T(u64(a) << amount);
        else if constexpr (std::is_signed_v<T>) return T(a >> std::min(amount, kBits - 1));
        else return amount >= kBits ? T(0) : T(a >> amount);
      });
    };
  });
}

// 32 bits out of the 64 of {b, a}.
template <bool kLeft>
void funnel(Decoder& d, Instruction& out) {
  const bool wraps = d.take("wrap");
  if (!wraps && !d.take("clamp")) d.refuse("wrap or clamp is missing");
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, Type::u32);
  out.mode = wraps;
  out.execute = [](Warp& w, const Instruction& i) {
    map3<u32, u32, u32, u32>(w, i, [&](u32 low, u32 high, u32 amount) {
      const u32 n = i.mode ? amount & 31 : std::min(amount, 32u);
      const u64 both = u64(high) << 32 | low;
      return kLeft ? u32((both << n) >> 32) : u32(both >> n);
    });
  };
}

void funnel_either(Decoder& d, Instruction& out) {
  d.take("l") ? funnel<true>(d, out) : d.take("r") ? funnel<false>(d, out) : d.refuse("l or r");
}

void extract_field(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, Type::u32);
  out.c = d.source(3, Type::u32);
  with_integer(type, [&]<class T>() {
    out.execute = [](Warp& w, const Instruction& i) {
      map3<T, T, u32, u32>(w, i, [](T a, u32 start, u32 length) {
        constexpr u32 kBits = 8 * sizeof(T);
        start &= 255, length &= 255;
        const u64 bits = u64(std::make_unsigned_t<T>(a));
        const u32 valid = start < kBits ? std::min(length, kBits - start) : 0;
        u64 result = valid == 0 ? 0 : (bits >> start) & (~u64(0) >> (64 - valid));
        // Above the field stands its highest bit, or the value's when the field reaches past it.
        const bool sign = std::is_signed_v<T> && length != 0 && (bits >> std::min(start + length - 1, kBits - 1) & 1);
        if (sign && valid < 64) result |= ~u64(0) << valid;
        return T(result);
      });
    };
  });
}

template <class T>
void insert_field_lanes(Warp& w, const Instruction& i) {
  const u32* length = w.column<u32>(i.e);
  Slot<T>* d = w.column<Slot<T>>(i.d);
  const Slot<T>*a = w.column<Slot<T>>(i.a), *b = w.column<Slot<T>>(i.b);
  const u32* start = w.column<u32>(i.c);
  for_lanes(w.active, [&](int l) {
    const u32 at = start[l] & 255, n = length[l] & 255;
    u64 mask = n >= 64 ? ~u64(0) : (u64(1) << n) - 1;
    mask = at >= 64 ? 0 : mask << at;
    d[l] = T((u64(b[l]) & ~mask) | (at >= 64 ? 0 : (u64(a[l]) << at) & mask));
  });
}

void insert_field(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, Type::u32);
  out.e = d.source(4, Type::u32);
  out.execute = size_of(type) == 8 ? &insert_field_lanes<u64> : &insert_field_lanes<u32>;
}

struct CountOnes { template <class T> u32 operator()(T a) const { return u32(std::popcount(std::make_unsigned_t<T>(a))); } };
struct LeadingZeros {
  template <class T>
  u32 operator()(T a) const {
    return u32(std::countl_zero(std::make_unsigned_t<T>(a)));
  }
};
struct HighestBit {  // of a signed number: the highest bit that differs from the sign
  template <class T> u32 operator()(T a) const {
    if constexpr (std::is_signed_v<T>) if (a < 0) a = T(~a);
    return a == 0 ? ~0u : u32(8 * sizeof(T) - 1) - LeadingZeros{}(a);
  }
};

template <class Op>
void count(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, Type::u32);
  out.a = d.source(1, type);
  with_integer(type, [&]<class T>() { out.execute = [](Warp& w, const Instruction& i) { map1<u32, T>(w, i, Op{}); }; });
}

template <class T>
T reversed(T a) {
  T result = 0;
  for (unsigned bit = 0; bit < 8 * sizeof(T); ++bit) result = T(result << 1 | (a >> bit & 1));
  return result;
}

void reverse_bits(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  if (size_of(type) == 8) out.execute = [](Warp& w, const Instruction& i) { map1<u64, u64>(w, i, &reversed<u64>); };
  else out.execute = [](Warp& w, const Instruction& i) { map1<u32, u32>(w, i, &reversed<u32>); };
}

// Four bytes chosen out of the eight of {b, a}; bit 3 of a selector spreads the byte's sign instead.
void permute_bytes(Decoder& d, Instruction& out) {
  const Type type = d.take_type();
  out.d = d.destination(0, type);
  out.a = d.source(1, type);
  out.b = d.source(2, type);
  out.c = d.source(3, type);
  out.execute = [](Warp& w, const Instruction& i) {
    map3<u32, u32, u32, u32>(w, i, [](u32 a, u32 b, u32 selectors) {
      const u64 bytes = u64(b) << 32 | a;
      u32 result = 0;
      for (int k = 0; k < 4; ++k) {
        const u32 selector = selectors >> (4 * k);
        u32 byte = u32(bytes >> (8 * (selector & 7))) & 255;
        if (selector & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * k);
      }
      return result;
    });
  };
}

// Sum of four products of bytes.
void dot_bytes(Decoder& d, Instruction& out) {
  const Type a = d.take_type(), b = d.take_type();
  out.d = d.destination(0, a);
  out.a = d.source(1, Type::b32);
  out.b = d.source(2, Type::b32);
  out.c = d.source(3, Type::b32);
  out.mode = std::uint8_t((is_signed(a) ? 1 : 0) | (is_signed(b) ? 2 : 0));
  out.execute = [](Warp& w, const Instruction& i) {
    map3<u32, u32, u32, u32>(w, i, [&](u32 x, u32 y, u32 sum) {
      for (int k = 0; k < 32; k += 8) {
        const auto byte = [&](u32 v, bool has_sign) { return has_sign ? int(std::int8_t(v >> k)) : int(v >> k & 255); };
        sum += u32(byte(x, i.mode & 1) * byte(y, i.mode & 2));
      }
      return sum;
    });
  };
}

}  // namespace

void add_bits(Table& table) {
  table["and"] = &logic<And>;
  table["or"] = &logic<Or>;
  table["xor"] = &logic<Xor>;
  table["not"] = &invert;
  table["cnot"] = &logical_not;
  table["lop3"] = &logic3;
  table["shl"] = &shift<true>;
  table["shr"] = &shift<false>;
  table["shf"] = &funnel_either;
  table["bfe"] = &extract_field;
  table["bfi"] = &insert_field;
  table["popc"] = &count<CountOnes>;
  table["clz"] = &count<LeadingZeros>;
  table["bfind"] = &count<HighestBit>;
  table["brev"] = &reverse_bits;
  table["prmt"] = &permute_bytes;
  table["dp4a"] = &dot_bytes;
}

}  // namespace refrain::emulator::ptx
