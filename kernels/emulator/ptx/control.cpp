// Branches, barriers of the block, ends, and orders of memory, which hold by themselves here.
#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/control.h>
#include <refrain/kernels/emulator/ptx/decode.h>

namespace refrain::emulator::ptx {

namespace {

using u32 = std::uint32_t;

// Lanes whose guard holds go to the target; the others stay behind as a group of their own.
void go_to(Warp& w, u32 target, u32 lanes) {
  if (lanes == w.group_lanes) {
    w.pc = target;
    w.must_choose = !w.groups.empty();
    return;
  }
  w.park(Group::ready, target, lanes);
}
void branch_lanes(Warp& w, const Instruction& i) { go_to(w, u32(i.immediate), w.active); }

void branch(Decoder& d, Instruction& out) {
  d.take("uni");
  out.immediate = d.names().label(d.operand(0));
  out.execute = &branch_lanes;
}

// A jump table: `count` targets behind `list`.
void branch_indexed(Warp& w, const Instruction& i) {
  const u32* index = w.column<u32>(i.a);
  for (u32 rest = w.active; rest != 0;) {
    const u32 chosen = index[std::countr_zero(rest)];
    if (chosen >= u32(i.immediate)) w.fail(i, std::countr_zero(rest), "no such target");
    u32 same = 0;
    for_lanes(rest, [&](int l) { same |= u32(index[l] == chosen) << l; });
    w.park(Group::ready, u32(w.list(i)[chosen]), same);
    rest &= ~same;
  }
}
void branch_by_index(Decoder& d, Instruction& out) {
  if (!d.take("idx")) d.refuse("idx is missing");
  d.take("uni");
  out.a = d.source(0, Type::u32);
  std::vector<std::int32_t> targets;
  for (const auto each : d.names().branch_targets(d.operand(1))) targets.push_back(std::int32_t(d.names().label(each)));
  out.immediate = std::int64_t(targets.size());
  out.list = d.list(targets);
  out.execute = &branch_indexed;
}

void exit_lanes(Warp& w, const Instruction&) {
  w.group_lanes &= ~w.active;
  w.must_choose = true;
  // Who waited for these lanes need not any more.
  for (Group& group : w.groups)
    if (group.state == Group::waiting) group.state = Group::ready;
}
void leave(Decoder& d, Instruction& out) {
  d.take("uni");
  out.execute = &exit_lanes;
}

void trap(Decoder&, Instruction& out) {
  out.execute = [](Warp& w, const Instruction& i) { w.fail(i, std::countr_zero(w.active), "trap"); };
}

void wait_for_block(Warp& w, const Instruction& i) {
  if (i.mode != kPlainBarrier) {
    const u32 bits = i.is_negated ? ~w.predicate(i.c) : w.predicate(i.c);
    w.block->votes += std::popcount(bits & w.active);
    w.block->voters += std::popcount(w.active);
  }
  w.park(Group::at_barrier, w.pc - 1, w.active);
}

void barrier(Decoder& d, Instruction& out) {
  if (d.take("warp")) {
    d.take("sync");
    out.a = d.source(0, Type::b32);
    out.execute = warp_barrier();
    return;
  }
  d.take_any("cta", "aligned");
  const bool reduces = d.take("red");
  if (!reduces && !d.take("sync")) d.refuse("sync or red");
  std::size_t id = 0;
  if (reduces) {
    out.mode = d.take("popc") ? kCountBarrier : d.take("and") ? kAndBarrier : d.take("or") ? kOrBarrier : kPlainBarrier;
    const Type type = d.take_type();
    out.d = d.destination(0, type);
    out.c = d.predicate(d.num_operands() - 1, out.is_negated);
    id = 1;
  }
  if (d.number(id) != 0 || d.num_operands() != (reduces ? 3u : 1u)) d.refuse("only barrier 0, of the whole block");
  out.execute = &wait_for_block;
}

void nothing(Warp&, const Instruction&) {}
void fence(Decoder& d, Instruction& out) {
  d.take_any("gl", "sys", "cta", "gpu", "cluster", "sc", "acq_rel", "acquire", "release");
  if (d.take("proxy")) d.take_any("async", "alias", "async::global", "async::shared::cta");
  out.execute = &nothing;
}
void sleep(Decoder& d, Instruction& out) {
  d.take_type();
  out.execute = &nothing;
}

}  // namespace

bool is_block_barrier(const Instruction& i) { return i.execute == &wait_for_block; }

void resolve_labels(Function& function, const std::vector<std::int64_t>& positions) {
  for (Instruction& i : function.code) {
    if (i.execute == &branch_lanes) i.immediate = positions.at(std::size_t(i.immediate));
    if (i.execute == &branch_indexed)
      for (std::int64_t k = 0; k < i.immediate; ++k) {
        std::int32_t& target = function.lists.at(std::size_t(i.list + k));
        target = std::int32_t(positions.at(std::size_t(target)));
      }
  }
}

void add_control(Table& table) {
  table["bra"] = &branch;
  table["brx"] = &branch_by_index;
  table["ret"] = &leave;
  table["exit"] = &leave;
  table["trap"] = &trap;
  table["bar"] = &barrier;
  table["barrier"] = &barrier;
  table["membar"] = &fence;
  table["fence"] = &fence;
  table["nanosleep"] = &sleep;
}

}  // namespace refrain::emulator::ptx
