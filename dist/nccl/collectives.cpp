#include <refrain/dist/nccl/collectives.h>

#include <algorithm>

namespace refrain::detail {

namespace {

// `count` elements from `begin` on.
Tensor piece_of(const Tensor& t, std::int64_t begin, std::int64_t count) {
  return Tensor(t.storage(), t.device(), t.dtype(), {count}, {1}, t.offset() + begin);
}

struct Station {
  NcclLink& link;
  int rank, world_size;
  const Call& call;
  std::vector<NcclMessage>& messages;  // of the next exchange
  const NcclLink::Patience& patience;

  void exchange() const {
    link.exchange(messages, patience);
    messages.clear();
  }
  std::int64_t size() const { return std::int64_t(size_of(call.dtype())); }
  // What the others send, a row a rank, `elements` apart.
  Tensor rows(std::int64_t first, std::int64_t elements, std::int64_t count) const {
    const Tensor& scratch = call.scratch;
    return Tensor(scratch.storage(), scratch.device(), call.dtype(), {world_size - 1, count}, {elements, 1},
                  scratch.offset() / size() + first * elements);
  }
  void reduce(const Tensor& own, const Tensor& others, const Tensor& out) const {
    link.reduce({.own = own, .others = others, .rank = rank, .op = call.op, .out = out});
  }
};

// A small one: one message to everybody, and every rank adds all of them.
void all_reduce_directly(const Station& at) {
  const Call& call = at.call;
  const std::int64_t numel = call.in.numel(), bytes = call.in.bytes();
  std::byte* to = call.scratch.address();
  for (int r = 0; r < at.world_size; ++r) {
    if (r == at.rank) continue;
    at.messages.push_back({r, true, call.in.address(), bytes});
    at.messages.push_back({r, false, to, bytes});
    to += bytes;
  }
  at.exchange();
  const Tensor own = piece_of(call.out, 0, numel);
  at.reduce(own, at.rows(0, numel, numel), own);
}

// Every rank adds its own piece. With `gather` a round's sums go to everybody, together with the next round's parts.
void reduce_by_pieces(const Station& at, bool gather) {
  const Call& call = at.call;
  const Rounds rounds = rounds_of(call, at.world_size);
  const std::int64_t size = at.size();
  const std::vector<std::int64_t> offsets = offsets_of(call.counts);
  const std::int64_t own_begin = offsets[std::size_t(at.rank)];
  const auto length = [&](int r, std::int64_t round) {  // of rank r's piece in this round
    return std::clamp<std::int64_t>(call.counts[std::size_t(r)] - round * rounds.elements, 0, rounds.elements);
  };
  const auto place = [&](int r, std::int64_t round) {
    return call.in.address() + (offsets[std::size_t(r)] + round * rounds.elements) * size;
  };
  const auto first_row = [&](std::int64_t round) { return (round % rounds.num_slots) * (at.world_size - 1); };
  const auto add_parts = [&](std::int64_t round) {
    std::byte* to = call.scratch.address() + first_row(round) * rounds.elements * size;
    for (int r = 0; r < at.world_size; ++r) {
      if (r == at.rank) continue;
      at.messages.push_back({r, true, place(r, round), length(r, round) * size});
      at.messages.push_back({r, false, to, length(at.rank, round) * size});
      to += rounds.elements * size;
    }
  };
  const auto add_sums = [&](std::int64_t round) {
    for (int r = 0; r < at.world_size; ++r) {
      if (r == at.rank) continue;
      at.messages.push_back({r, true, place(at.rank, round), length(at.rank, round) * size});
      at.messages.push_back({r, false, place(r, round), length(r, round) * size});
    }
  };

  add_parts(0);
  for (std::int64_t round = 0; round < rounds.num_rounds; ++round) {
    at.exchange();
    const std::int64_t begin = round * rounds.elements, own = length(at.rank, round);
    if (own > 0) {
      const Tensor part = piece_of(call.in, own_begin + begin, own);
      at.reduce(part, at.rows(first_row(round), rounds.elements, own), gather ? part : piece_of(call.out, begin, own));
    }
    if (gather) add_sums(round);
    if (round + 1 < rounds.num_rounds) add_parts(round + 1);
  }
  at.exchange();
}

void all_gather(const Station& at) {
  const Call& call = at.call;
  const std::vector<std::int64_t> offsets = offsets_of(call.counts);
  const auto place = [&](int r) { return call.out.address() + offsets[std::size_t(r)] * at.size(); };
  const std::int64_t bytes = call.in.bytes();
  for (int r = 0; r < at.world_size; ++r) {
    if (r == at.rank) continue;
    at.messages.push_back({r, true, call.in.address(), bytes});
    at.messages.push_back({r, false, place(r), call.counts[std::size_t(r)] * at.size()});
  }
  at.exchange();
  if (bytes > 0 && place(at.rank) != call.in.address()) at.link.copy(place(at.rank), call.in.address(), bytes);
}

}  // namespace

std::vector<NcclMessage> to_everybody(int rank, int world_size, std::byte* device, std::int64_t bytes) {
  std::vector<NcclMessage> messages;
  for (int r = 0; r < world_size; ++r) {
    if (r == rank) continue;
    messages.push_back({r, true, device + rank * bytes, bytes});
    messages.push_back({r, false, device + r * bytes, bytes});
  }
  return messages;
}

void give_collective(NcclLink& link, int rank, int world_size, const Call& call, std::vector<NcclMessage> headers,
                     const NcclLink::Patience& patience) {
  const Station at{link, rank, world_size, call, headers, patience};
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::reduce_scatter: {
      const Rounds rounds = rounds_of(call, world_size);
      if (world_size == 1 && call.in.address() != call.out.address() && call.in.bytes() > 0)
        link.copy(call.out.address(), call.in.address(), call.in.bytes());  // a part of one rank
      if (rounds.num_rounds == 0) return at.exchange();
      return rounds.is_direct ? all_reduce_directly(at) : reduce_by_pieces(at, call.kind == CallKind::all_reduce);
    }
    case CallKind::all_gather: return all_gather(at);
    case CallKind::broadcast:
      at.exchange();
      return link.broadcast(call.out.address(), call.out.bytes(), call.peer, patience);
    case CallKind::barrier: return at.exchange();
    case CallKind::send:
    case CallKind::receive: break;
  }
  fail<InternalError>("not a collective");
}

}  // namespace refrain::detail
