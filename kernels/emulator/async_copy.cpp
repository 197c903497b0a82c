#include <refrain/kernels/emulator/async_copy.h>
#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/race.h>

#include <cstring>

namespace refrain::emulator {

namespace {

void land(DeviceThread& me, const AsyncCopy& copy) {
  if (copy.from != nullptr) {
    note_read(copy.from, copy.bytes, me.seen.linear);
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
  note_write(copy.to, copy.bytes, me.seen.linear);
}

// Lands the copies of groups below `end`.
void land_below(unsigned end) {
  DeviceThread& me = Block::current()->now();
  std::size_t num_kept = 0;
  for (const AsyncCopy& copy : me.copies) {
    if (copy.group < end) land(me, copy);
    else me.copies[num_kept++] = copy;
  }
  me.copies.resize(num_kept);
}

}  // namespace

void cp_async(void* to, const void* from, unsigned bytes, bool is_wanted, Site site) {
  Block& block = *Block::current();
  DeviceThread& me = block.now();
  me.site = site;
  block.shared().check(to, bytes, "cp.async");
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0 && is_wanted) throw Error("cp.async: a source that is not aligned");
  std::memset(to, 0xff, bytes);
  note_write(to, bytes, me.seen.linear);
  me.copies.push_back({to, is_wanted ? from : nullptr, bytes, me.copy_group});
}

void cp_async_commit() { ++Block::current()->now().copy_group; }

void cp_async_wait(unsigned num_pending) {
  const unsigned groups = Block::current()->now().copy_group;
  land_below(groups > num_pending ? groups - num_pending : 0);
}

void cp_async_wait_all() { land_below(Block::current()->now().copy_group + 1); }

}  // namespace refrain::emulator
