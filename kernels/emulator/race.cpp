// The race detector. Kernels are compiled with -fsanitize=thread for its calls at every access; this file answers them in place
// of the sanitizer's library (race_callbacks.cpp), knowing what orders a kernel's threads: barriers of the block, __syncwarp,
// and the end of the launch. Blocks of one launch are never ordered.
#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/race.h>
#include <refrain/kernels/emulator/race_access.h>
#include <refrain/kernels/emulator/race_cells.h>

#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <mutex>
#include <sys/mman.h>

extern "C" char __executable_start;

namespace refrain::emulator {

const bool kFindsRaces = true;

namespace {

std::mutex first_mutex;
std::string first;  // race of the launch

void* reserve(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return memory;
  std::perror("emulator: no addresses for the race detector's cells");
  std::abort();
}

GlobalCell* global_cells() {
  static auto* cells = static_cast<GlobalCell*>(reserve(kDeviceSpace * sizeof(GlobalCell)));
  return cells;
}
SharedCell* shared_cells() {
  // Of a host thread, which runs a block at a time.
  static thread_local auto* cells = static_cast<SharedCell*>(reserve(SharedMemory::kBytes * sizeof(SharedCell)));
  return cells;
}

std::string name_of_place(std::uint32_t place) {
  const char* address = &__executable_start + place;
  Dl_info found{};
  char text[32];
  if (dladdr(address, &found) == 0 || found.dli_sname == nullptr) {
    std::snprintf(text, sizeof text, "0x%x", place);
    return text;
  }
  int status = 0;
  char* readable = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : found.dli_sname;
  std::free(readable);
  name = name.substr(0, name.find('('));
  std::snprintf(text, sizeof text, " (0x%x)", place);
  return name + text;
}

struct Party {
  unsigned block, thread;
  std::uint32_t place;
};
std::string text(const Party& party) {
  return "thread " + std::to_string(party.thread) + " of block " + std::to_string(party.block) + " in " + name_of_place(party.place);
}
[[gnu::noinline, gnu::cold]] void report(const char* kind, const std::string& where, const Party& now, const Party& before) {
  const std::lock_guard lock(first_mutex);
  if (first.empty()) first = std::string(kind) + " race on " + where + ": " + text(now) + " and " + text(before);
}

// Whether what a thread did with that stamp, in this interval, comes before what `me` does now.
bool is_ordered(unsigned thread, std::uint16_t stamp, const DeviceThread& me) {
  if (thread == me.seen.linear) return true;
  return thread / 32 == me.seen.warp && stamp <= me.known[thread % 32];
}

void note_reader(SharedCell& cell, const DeviceThread& me) {
  cell.warps |= 1u << me.seen.warp;
  SharedCell::Readers* free_group = nullptr;
  for (SharedCell::Readers& group : cell.groups) {
    if (group.lanes != 0 && group.warp == me.seen.warp) {
      if (group.stamp == me.stamp) {
        group.lanes |= 1u << me.seen.lane;
        return;
      }
      // Who is ordered after this read is ordered after those that came before it.
      for (unsigned lane = 0; lane < 32; ++lane)
        if ((group.lanes >> lane & 1) != 0 && is_ordered(group.warp * 32u + lane, group.stamp, me)) group.lanes &= ~(1u << lane);
    }
    if (group.lanes == 0 && free_group == nullptr) free_group = &group;
  }
  if (free_group == nullptr) free_group = &cell.groups[me.seen.linear % SharedCell::kGroups];
  *free_group = {1u << me.seen.lane, me.stamp, std::uint8_t(me.seen.warp)};
}

// A thread that has read and is not ordered before `me`; -1: none.
int unordered_reader(const SharedCell& cell, const DeviceThread& me) {
  if ((cell.warps & ~(1u << me.seen.warp)) != 0) {
    for (const SharedCell::Readers& group : cell.groups)
      if (group.lanes != 0 && group.warp != me.seen.warp) return group.warp * 32 + __builtin_ctz(group.lanes);
    return cell.reader;
  }
  for (const SharedCell::Readers& group : cell.groups)
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((group.lanes >> lane & 1) != 0 && !is_ordered(group.warp * 32u + lane, group.stamp, me)) return group.warp * 32 + int(lane);
  return -1;
}

void access_shared(Block& block, std::size_t offset, const Access& access, const DeviceThread& me) {
  SharedCell* cell = shared_cells() + offset;
  const unsigned in = block.place().linear;
  for (std::size_t i = 0; i < access.bytes; ++i, ++cell) {
    if (cell->interval != block.interval()) {
      *cell = SharedCell{};
      cell->interval = block.interval();
    }
    if (cell->is_written && !(access.is_atomic && cell->is_atomic) && !is_ordered(cell->writer, cell->write_stamp, me))
      report(access.is_write ? "write-write" : "read-after-write", "shared memory, " + block.shared().describe(offset + i),
             {in, me.seen.linear, access.place}, {in, cell->writer, cell->write_place});
    if (!access.is_write) {
      note_reader(*cell, me);
      cell->reader = std::uint16_t(me.seen.linear);
      cell->read_place = access.place;
      continue;
    }
    if (cell->warps != 0) {
      if (const int reader = unordered_reader(*cell, me); reader >= 0)
        report("write-after-read", "shared memory, " + block.shared().describe(offset + i), {in, me.seen.linear, access.place},
               {in, unsigned(reader), cell->read_place});
    }
    cell->is_written = true;
    cell->is_atomic = access.is_atomic;
    cell->writer = std::uint16_t(me.seen.linear);
    cell->write_stamp = me.stamp;
    cell->write_place = access.place;
  }
}

bool conflicts(std::uint64_t before, std::uint16_t stamp, std::uint64_t now, const DeviceThread& me) {
  if (before == 0 || !GlobalAccess::same_launch(before, now)) return false;
  if (GlobalAccess::is_atomic(before) && GlobalAccess::is_atomic(now)) return false;
  if (!GlobalAccess::same_block(before, now)) return true;
  return GlobalAccess::same_interval(before, now) && !is_ordered(GlobalAccess::thread(before), stamp, me);
}

// Blocks run at once on several host threads: words are read and written whole, and what is missed in between is met by the
// next access.
void access_global(Block& block, std::size_t offset, const Access& access, const DeviceThread& me) {
  GlobalCell* cell = global_cells() + offset;
  const std::uint64_t now =
      GlobalAccess::pack(block.place().launch, block.place().linear, block.barriers(), me.seen.linear, access.is_atomic);
  const auto load = [](std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); };
  const auto store = [](std::uint64_t& word, std::uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELAXED); };
  const auto tell = [&](const char* kind, std::uint64_t before, std::uint32_t place, std::size_t i) {
    report(kind, "device memory at " + std::to_string(offset + i), {block.place().linear, me.seen.linear, access.place},
           {GlobalAccess::block(before), GlobalAccess::thread(before), place});
  };
  for (std::size_t i = 0; i < access.bytes; ++i, ++cell) {
    const std::uint64_t write = load(cell->write);
    if (write != now && conflicts(write, cell->write_stamp, now, me))
      tell(access.is_write ? "write-write" : "read-after-write", write, cell->write_place, i);
    const std::uint64_t read = load(cell->read);
    if (!access.is_write) {
      if (read == now) continue;
      if (GlobalAccess::same_launch(read, now) && !GlobalAccess::same_block(read, now)) store(cell->other_read, read);
      store(cell->read, now);
      cell->read_stamp = me.stamp;
      cell->read_place = access.place;
      continue;
    }
    if (conflicts(read, cell->read_stamp, now, me)) tell("write-after-read", read, cell->read_place, i);
    const std::uint64_t other = load(cell->other_read);
    if (other != 0 && GlobalAccess::same_launch(other, now) && !GlobalAccess::same_block(other, now) && !access.is_atomic)
      tell("write-after-read", other, cell->read_place, i);
    store(cell->write, now);
    cell->write_stamp = me.stamp;
    cell->write_place = access.place;
  }
}

std::uint32_t place_of(const void* return_address) { return std::uint32_t(static_cast<const char*>(return_address) - &__executable_start); }

}  // namespace

void note_access(const void* address, const Access& access, unsigned linear) {
  Block* block = Block::current();
  if (block == nullptr) return;
  const auto shared = std::size_t(static_cast<const char*>(address) - block->shared().base());
  if (shared < SharedMemory::kBytes) {
    if (shared + access.bytes <= SharedMemory::kBytes) access_shared(*block, shared, access, block->thread(linear));
    return;
  }
  const auto offset = std::size_t(static_cast<const char*>(address) - device_space());
  if (offset < kDeviceSpace) access_global(*block, offset, access, block->thread(linear));
}

void note_read(const void* address, std::size_t bytes, unsigned linear) {
  note_access(address, {bytes, false, false, place_of(__builtin_return_address(0))}, linear);
}
void note_write(const void* address, std::size_t bytes, unsigned linear) {
  note_access(address, {bytes, true, false, place_of(__builtin_return_address(0))}, linear);
}
void note_atomic(const void* address, std::size_t bytes) {
  if (current_thread != nullptr) note_access(address, {bytes, true, true, place_of(__builtin_return_address(0))}, current_thread->linear);
}

void order_lanes(DeviceThread* lanes, unsigned mask, std::uint16_t& warp_stamp) {
  std::uint16_t known[32] = {};
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    for (unsigned other = 0; other < 32; ++other) known[other] = std::max(known[other], lanes[lane].known[other]);
    known[lane] = std::max(known[lane], lanes[lane].stamp);
  }
  ++warp_stamp;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    std::copy(std::begin(known), std::end(known), lanes[lane].known);
    lanes[lane].stamp = warp_stamp;
  }
}

void start_race_check() {
  const std::lock_guard lock(first_mutex);
  first.clear();
}

std::string end_race_check() {
  const std::lock_guard lock(first_mutex);
  return first;
}

}  // namespace refrain::emulator
