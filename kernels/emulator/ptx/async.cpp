// cp.async: the bytes arrive as late as is allowed, at the wait; until then NaN stands where they will.
#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/memory_access.h>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

void start_copies(Warp& w, const Instruction& i) {
  const u32 bytes = i.count;
  const u64* sources = w.column<u64>(i.b);
  for_lanes(w.active, [&](int l) {
    std::byte* destination = host_address<Space::shared>(w, i, l, bytes);
    const u64 source = sources[l] + u64(w.list(i)[0]);
    const u32 source_bytes = i.c < 0 ? bytes : w.column<u32>(i.c)[l];
    if (source_bytes > bytes) w.fail(i, l, "more bytes from the source than to be written");
    if (source_bytes != 0 && source % bytes != 0) w.fail(i, l, "misaligned source");
    std::memset(destination, 0xff, bytes);
    w.copies.push_back({destination, reinterpret_cast<const std::byte*>(source), bytes, source_bytes, w.batches[l], l});
  });
}

// All batches of the active lanes but the newest `kept` that were committed; `kept` < 0 completes everything.
void complete(Warp& w, std::int64_t kept) {
  std::erase_if(w.copies, [&](const AsyncCopy& copy) {
    if (!(w.active >> copy.lane & 1)) return false;
    if (kept >= 0 && copy.batch + u64(kept) >= w.batches[copy.lane]) return false;
    if (copy.source_bytes != 0) std::memcpy(copy.destination, copy.source, copy.source_bytes);
    std::memset(copy.destination + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    return true;
  });
}

void copy_async(Decoder& d, Instruction& out) {
  if (!d.take("async")) d.refuse("only cp.async");
  if (d.take("commit_group")) {
    out.execute = [](Warp& w, const Instruction&) {
      for_lanes(w.active, [&](int l) { ++w.batches[l]; });
    };
    return;
  }
  if (d.take("wait_group")) {
    out.immediate = std::int64_t(d.number(0));
    out.execute = [](Warp& w, const Instruction& i) { complete(w, i.immediate); };
    return;
  }
  if (d.take("wait_all")) {
    out.execute = [](Warp& w, const Instruction&) { complete(w, -1); };
    return;
  }
  const bool bypasses_l1 = d.take("cg");
  if (!bypasses_l1 && !d.take("ca")) d.refuse("cg or ca");
  if (!(d.take("shared") || d.take("shared::cta")) || !d.take("global")) d.refuse("only from global to shared memory");
  d.take_any("L2::64B", "L2::128B", "L2::256B");
  Instruction source;
  d.address(1, source);
  if (!source.is_wide) d.refuse("64-bit sources only");
  out.b = source.a;
  out.list = d.list({std::int32_t(source.immediate)});
  d.address(0, out);
  const u64 bytes = d.number(2);
  if (bytes != 16 && (bypasses_l1 || (bytes != 4 && bytes != 8))) d.refuse("a size that no device copies");
  out.count = std::uint8_t(bytes);
  if (d.num_operands() > 3) out.c = d.source(3, Type::u32);
  out.execute = &start_copies;
}

}  // namespace

void add_async(Table& table) { table["cp"] = &copy_async; }

}  // namespace refrain::emulator::ptx
