#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/gloo/collectives.h>
#include <refrain/kernels/reduce/reduce_ranks.h>

#include <algorithm>
#include <cstring>

namespace refrain::detail {

namespace {

void wait_all(std::vector<Transfer>& transfers) {
  for (Transfer& transfer : transfers) transfer.wait();
  transfers.clear();
}

// One message to everybody, and every rank adds all of them.
void all_reduce_directly(const Station& at, const Call& call) {
  std::byte *own = call.out.address(), *scratch = call.scratch.address();
  const std::size_t bytes = std::size_t(call.in.bytes());
  std::vector<Transfer> receives, sends;
  std::vector<const std::byte*> parts;
  for (int r = 0; r < at.world_size; ++r) {
    parts.push_back(r == at.rank ? own : scratch);
    if (r == at.rank) continue;
    receives.push_back(at.receive(r, at.slot, scratch, bytes));
    scratch += bytes;
  }
  for (int r = 0; r < at.world_size; ++r)
    if (r != at.rank) sends.push_back(at.send(r, at.slot, own, bytes));
  wait_all(receives);
  wait_all(sends);
  reduce_ranks(call.dtype(), call.op, parts, own, call.in.numel());
}

// Every rank adds its own piece. Rounds overlap: while one is added, the next is on its way. With `gather` a round's sums go
// to everybody at once, into the places they came from.
void reduce_by_pieces(const Station& at, const Call& call, bool gather) {
  const Rounds rounds = rounds_of(call, at.world_size);
  const std::int64_t size = std::int64_t(size_of(call.dtype()));
  const std::vector<std::int64_t> offsets = offsets_of(call.counts);
  std::byte* whole = call.in.address();
  std::byte* result = gather ? whole + offsets[std::size_t(at.rank)] * size : call.out.address();
  const auto length = [&](int r, std::int64_t round) {  // of rank r's piece in this round
    return std::clamp<std::int64_t>(call.counts[std::size_t(r)] - round * rounds.elements, 0, rounds.elements);
  };
  const auto place = [&](int r, std::int64_t round) {
    return whole + (offsets[std::size_t(r)] + round * rounds.elements) * size;
  };
  const auto slot_place = [&](int r, std::int64_t round) {
    const std::int64_t index = (round % rounds.num_slots) * (at.world_size - 1) + (r < at.rank ? r : r - 1);
    return call.scratch.address() + index * rounds.elements * size;
  };
  const auto slot = [&](std::int64_t round, int part) { return at.slot + std::uint64_t(2 * round + part) % 256; };

  struct Round {
    std::vector<Transfer> receives, sends;
  };
  const auto start = [&](std::int64_t round) {
    Round started;
    for (int r = 0; r < at.world_size; ++r)
      if (r != at.rank)
        started.receives.push_back(
            at.receive(r, slot(round, 0), slot_place(r, round), std::size_t(length(at.rank, round) * size)));
    for (int r = 0; r < at.world_size; ++r)
      if (r != at.rank)
        started.sends.push_back(at.send(r, slot(round, 0), place(r, round), std::size_t(length(r, round) * size)));
    return started;
  };

  std::vector<Transfer> gathering;
  std::vector<const std::byte*> parts(std::size_t(at.world_size));
  Round current = start(0);
  for (std::int64_t round = 0; round < rounds.num_rounds; ++round) {
    Round next;
    if (round + 1 < rounds.num_rounds) next = start(round + 1);
    wait_all(current.receives);
    const std::int64_t own = length(at.rank, round);
    for (int r = 0; r < at.world_size; ++r) parts[std::size_t(r)] = r == at.rank ? place(r, round) : slot_place(r, round);
    if (own > 0) reduce_ranks(call.dtype(), call.op, parts, result + round * rounds.elements * size, own);
    wait_all(current.sends);  // their places may be written now
    if (gather) {
      for (int r = 0; r < at.world_size; ++r)
        if (r != at.rank)
          gathering.push_back(at.receive(r, slot(round, 1), place(r, round), std::size_t(length(r, round) * size)));
      for (int r = 0; r < at.world_size; ++r)
        if (r != at.rank) gathering.push_back(at.send(r, slot(round, 1), place(at.rank, round), std::size_t(own * size)));
    }
    current = std::move(next);
  }
  wait_all(gathering);
}

void all_gather(const Station& at, const Call& call) {
  const std::int64_t size = std::int64_t(size_of(call.dtype()));
  const std::vector<std::int64_t> offsets = offsets_of(call.counts);
  std::byte *whole = call.out.address(), *own = whole + offsets[std::size_t(at.rank)] * size;
  const std::size_t own_bytes = std::size_t(call.in.bytes());
  std::vector<Transfer> transfers;
  for (int r = 0; r < at.world_size; ++r)
    if (r != at.rank)
      transfers.push_back(
          at.receive(r, at.slot, whole + offsets[std::size_t(r)] * size, std::size_t(call.counts[std::size_t(r)] * size)));
  for (int r = 0; r < at.world_size; ++r)
    if (r != at.rank) transfers.push_back(at.send(r, at.slot, call.in.address(), own_bytes));
  if (own_bytes > 0 && own != call.in.address()) std::memcpy(own, call.in.address(), own_bytes);
  wait_all(transfers);
}

void broadcast(const Station& at, const Call& call) {
  const TreePlace place = tree_place(at.rank, call.peer, at.world_size);
  const std::size_t bytes = std::size_t(call.in.bytes());
  if (place.from >= 0) at.receive(place.from, at.slot, call.out.address(), bytes).wait();
  std::vector<Transfer> sends;
  for (const int to : place.to) sends.push_back(at.send(to, at.slot, call.out.address(), bytes));
  wait_all(sends);
}

// In round k every rank hears of 2^k more ranks that have come.
void barrier(const Station& at) {
  for (int step = 1, round = 0; step < at.world_size; step *= 2, ++round) {
    char in = 0, out = 0;
    Transfer receive = at.receive((at.rank - step + at.world_size) % at.world_size, at.slot + std::uint64_t(round), &in, 1);
    Transfer send = at.send((at.rank + step) % at.world_size, at.slot + std::uint64_t(round), &out, 1);
    receive.wait();
    send.wait();
  }
}

}  // namespace

void run_collective(const Station& at, const Call& call) {
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::reduce_scatter: {
      if (at.world_size == 1 && call.in.address() != call.out.address() && call.in.numel() > 0)
        std::memcpy(call.out.address(), call.in.address(), std::size_t(call.in.bytes()));
      const Rounds rounds = rounds_of(call, at.world_size);
      if (rounds.num_rounds == 0) return;
      return rounds.is_direct ? all_reduce_directly(at, call) : reduce_by_pieces(at, call, call.kind == CallKind::all_reduce);
    }
    case CallKind::all_gather: return all_gather(at, call);
    case CallKind::broadcast: return broadcast(at, call);
    case CallKind::barrier: return barrier(at);
    case CallKind::send:
    case CallKind::receive: fail<InternalError>("not a collective");
  }
}

}  // namespace refrain::detail

#endif  // REFRAIN_HAS_GLOO
