#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/control.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

namespace refrain::emulator::ptx {

void Warp::fail(const Instruction& i, int lane, const std::string& why) const {
  const Dim at = block->index(), size = block->launch().block;
  const unsigned thread = unsigned(index) * 32 + unsigned(lane);
  const auto triple = [](unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  };
  throw Error("ptx: " + why + ": " + function->texts[i.text] + " [block " + triple(at.x, at.y, at.z) + " thread " +
              triple(thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)) + " of " + function->name + "]");
}

void Warp::park(Group::State state, std::uint32_t at, std::uint32_t lanes) {
  groups.push_back({at, lanes, state});
  group_lanes &= ~lanes;
  must_choose = true;
}

std::uint32_t Warp::living() const {
  std::uint32_t lanes = group_lanes;
  for (const Group& group : groups) lanes |= group.lanes;
  return lanes;
}

namespace {

// The ready group that stands lowest in the code, with all that wait at the same place.
bool choose(Warp& w) {
  const Group* lowest = nullptr;
  for (const Group& group : w.groups)
    if (group.state == Group::ready && (lowest == nullptr || group.pc < lowest->pc)) lowest = &group;
  if (lowest == nullptr) return false;
  w.pc = lowest->pc;
  w.group_lanes = 0;
  std::erase_if(w.groups, [&](const Group& group) {
    const bool joins = group.pc == w.pc && group.state != Group::at_barrier;
    if (joins) w.group_lanes |= group.lanes;
    return joins;
  });
  return true;
}

}  // namespace

bool advance(Warp& w) {
  const Instruction* code = w.function->code.data();
  bool has_moved = false;
  while (choose(w)) {
    has_moved = true;
    // Beyond this another group stands lower.
    std::uint32_t limit = ~0u;
    for (const Group& group : w.groups)
      if (group.pc > w.pc) limit = std::min(limit, group.pc);
    w.must_choose = false;
    do {
      const Instruction& i = code[w.pc++];
      std::uint32_t active = w.group_lanes;
      if (i.guard >= 0) active &= i.is_guard_negated ? ~w.predicate(i.guard) : w.predicate(i.guard);
      if (active == 0) continue;
      w.active = active;
      i.execute(w, i);
    } while (!w.must_choose && w.pc < limit);
    if (w.group_lanes != 0) w.groups.push_back({w.pc, w.group_lanes, Group::ready});
    w.group_lanes = 0;
  }
  return has_moved;
}

std::byte* BlockRun::shared_at(const Warp& warp, const Instruction& i, int lane, std::uint64_t offset, std::size_t bytes) const {
  if (offset + bytes > shared_bytes_ || offset > shared_bytes_)
    warp.fail(i, lane,
              "shared address " + std::to_string(offset) + " outside the block's " + std::to_string(shared_bytes_) + " bytes");
  if (offset % bytes != 0) warp.fail(i, lane, "misaligned shared address");
  return shared_ + offset;
}

namespace {

// What a preset is for one lane. Columns of 32 bits use the low half.
std::uint64_t value_of(const Preset& preset, const Warp& w, int lane) {
  const Launch& launch = w.block->launch();
  const Dim block = launch.block, grid = launch.grid, index = w.block->index();
  const unsigned thread = unsigned(w.index) * 32 + unsigned(lane);
  const auto bit = [&] { return std::uint64_t(1) << lane; };
  switch (preset.kind) {
    case Preset::tid_x: return thread % block.x;
    case Preset::tid_y: return thread / block.x % block.y;
    case Preset::tid_z: return thread / (block.x * block.y);
    case Preset::ntid_x: return block.x;
    case Preset::ntid_y: return block.y;
    case Preset::ntid_z: return block.z;
    case Preset::ctaid_x: return index.x;
    case Preset::ctaid_y: return index.y;
    case Preset::ctaid_z: return index.z;
    case Preset::nctaid_x: return grid.x;
    case Preset::nctaid_y: return grid.y;
    case Preset::nctaid_z: return grid.z;
    case Preset::laneid: return unsigned(lane);
    case Preset::warpid: return unsigned(w.index);
    case Preset::nwarpid: return (block.x * block.y * block.z + 31) / 32;
    case Preset::lanemask_eq: return bit();
    case Preset::lanemask_lt: return bit() - 1;
    case Preset::lanemask_le: return bit() * 2 - 1;
    case Preset::lanemask_gt: return ~(bit() * 2 - 1);
    case Preset::lanemask_ge: return ~(bit() - 1);
    case Preset::dynamic_smem_size: return launch.dynamic_shared_bytes;
    case Preset::total_smem_size: return w.block->shared_bytes();
    case Preset::param_address: return reinterpret_cast<std::uint64_t>(launch.parameters) + preset.value;
    case Preset::local_address:
      return reinterpret_cast<std::uint64_t>(w.local.data()) + std::uint64_t(lane) * w.function->local_bytes + preset.value;
    case Preset::dynamic_shared: case Preset::dynamic_shared32: return w.function->shared_bytes;
    case Preset::constant32: case Preset::constant64: case Preset::constant_pred: return preset.value;
  }
  return 0;
}

bool is_wide(Preset::Kind kind) {
  return kind == Preset::param_address || kind == Preset::local_address || kind == Preset::dynamic_shared ||
         kind == Preset::constant64;
}
bool is_of_block(Preset::Kind kind) { return kind == Preset::ctaid_x || kind == Preset::ctaid_y || kind == Preset::ctaid_z; }

void fill_preset(Warp& w, const Preset& preset) {
  if (preset.kind == Preset::constant_pred) {
    w.predicate(preset.offset) = std::uint32_t(preset.value);
    return;
  }
  for (int lane = 0; lane < 32; ++lane) {
    const std::uint64_t value = value_of(preset, w, lane);
    if (is_wide(preset.kind)) w.column<std::uint64_t>(preset.offset)[lane] = value;
    else w.column<std::uint32_t>(preset.offset)[lane] = std::uint32_t(value);
  }
}

}  // namespace

BlockRun::BlockRun(const Launch& launch) : launch_(launch) {
  const Function& function = *launch.function;
  const unsigned num_threads = launch.block.x * launch.block.y * launch.block.z, num_warps = (num_threads + 31) / 32;
  constexpr std::size_t kAlign = 128;
  const std::size_t register_bytes = (function.register_bytes + kAlign - 1) / kAlign * kAlign;
  register_memory_.assign(register_bytes * num_warps + kAlign, std::byte{0xcd});
  shared_bytes_ = function.shared_bytes + launch.dynamic_shared_bytes;
  shared_memory_.resize(shared_bytes_ + 1024);
  const auto aligned = [](std::byte* address, std::size_t to) {
    return address + (to - reinterpret_cast<std::uintptr_t>(address) % to) % to;
  };
  shared_ = aligned(shared_memory_.data(), 1024);
  for (unsigned k = 0; k < num_warps; ++k) {
    auto warp = std::make_unique<Warp>();
    warp->function = &function;
    warp->block = this;
    warp->registers = aligned(register_memory_.data(), kAlign) + register_bytes * k;
    warp->index = int(k);
    warp->local.resize(function.local_bytes * 32 + 16);
    for (const Preset& preset : function.presets) fill_preset(*warp, preset);
    warps_.push_back(std::move(warp));
  }
}
BlockRun::~BlockRun() = default;

void BlockRun::start_warps() {
  std::fill(shared_memory_.begin(), shared_memory_.end(), std::byte{0xff});  // NaN: nobody may read what nobody wrote
  const unsigned num_threads = launch_.block.x * launch_.block.y * launch_.block.z;
  for (auto& warp : warps_) {
    const unsigned lanes = std::min(32u, num_threads - unsigned(warp->index) * 32);
    warp->groups.assign(1, {0, lanes == 32 ? kAllLanes : (1u << lanes) - 1, Group::ready});
    warp->copies.clear();
    std::fill_n(warp->batches, 32, 0u);
    std::fill(warp->local.begin(), warp->local.end(), std::byte{0xff});
    for (const Preset& preset : launch_.function->presets)
      if (is_of_block(preset.kind)) fill_preset(*warp, preset);
  }
  votes = voters = 0;
}

void BlockRun::open_barrier() {
  std::uint32_t where = 0;
  for (const auto& warp : warps_)
    if (!warp->groups.empty()) where = warp->groups.front().pc;
  for (auto& warp : warps_)
    for (Group& group : warp->groups) {
      const Instruction& i = launch_.function->code[group.pc];
      if (group.pc != where)
        warp->fail(
            i, std::countr_zero(group.lanes),
            "threads meet at different barriers, another one is " + launch_.function->texts[launch_.function->code[where].text]);
      warp->active = group.lanes;
      if (i.mode == kCountBarrier)
        for_lanes(group.lanes, [&](int l) { warp->column<std::uint32_t>(i.d)[l] = std::uint32_t(votes); });
      if (i.mode == kAndBarrier) warp->set_predicate(i.d, votes == voters ? kAllLanes : 0);
      if (i.mode == kOrBarrier) warp->set_predicate(i.d, votes != 0 ? kAllLanes : 0);
      ++group.pc;
      group.state = Group::ready;
    }
  votes = voters = 0;
}

void BlockRun::fail_deadlock() const {
  for (const auto& warp : warps_)
    for (const Group& group : warp->groups)
      if (group.state == Group::waiting)
        warp->fail(launch_.function->code[group.pc], std::countr_zero(group.lanes), "deadlock: lanes of its mask never come");
  throw Error("ptx: deadlock in " + launch_.function->name);
}

void BlockRun::run(Dim index, std::uint64_t linear) {
  index_ = index;
  start_warps();
  std::vector<Warp*> order;
  for (auto& warp : warps_) order.push_back(warp.get());
  if (launch_.order == Order::reverse) std::reverse(order.begin(), order.end());
  std::minstd_rand random(std::uint32_t(linear * 2654435761u + 1));
  for (;;) {
    if (launch_.order == Order::random) std::shuffle(order.begin(), order.end(), random);
    bool is_left = false, is_stuck = false;
    for (Warp* warp : order) {
      advance(*warp);
      for (const Group& group : warp->groups) {
        is_left = true;
        if (group.state != Group::at_barrier) is_stuck = true;
      }
    }
    if (is_stuck) fail_deadlock();
    if (!is_left) return;
    open_barrier();
  }
}

void execute(const Function& function, Dim grid, Dim block, std::size_t dynamic_shared_bytes, const std::byte* parameters,
             Order order, int num_threads) {
  const std::uint64_t num_blocks = std::uint64_t(grid.x) * grid.y * grid.z;
  const Launch launch{&function, grid, block, dynamic_shared_bytes, parameters, order};
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      BlockRun run(launch);
      for (std::uint64_t k; (k = next++) < num_blocks;) {
        const std::uint64_t linear = order == Order::reverse ? num_blocks - 1 - k : k;
        run.run(
            {unsigned(linear % grid.x), unsigned(linear / grid.x % grid.y), unsigned(linear / (std::uint64_t(grid.x) * grid.y))},
            linear);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = num_blocks;
    }
  };
  const int wanted = num_threads > 0 ? num_threads : int(std::thread::hardware_concurrency());
  std::vector<std::thread> helpers;
  for (int k = 1; k < wanted && std::uint64_t(k) * 4 < num_blocks; ++k) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace refrain::emulator::ptx
