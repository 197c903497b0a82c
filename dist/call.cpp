#include <refrain/dist/call.h>

#include <algorithm>
#include <numeric>

namespace refrain::detail {

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::all_reduce: return "all_reduce";
    case CallKind::reduce_scatter: return "reduce_scatter";
    case CallKind::all_gather: return "all_gather";
    case CallKind::broadcast: return "broadcast";
    case CallKind::send: return "send";
    case CallKind::receive: return "receive";
    case CallKind::barrier: return "barrier";
  }
  return "?";
}

namespace {

std::string among(std::span<const int> ranks) {
  constexpr std::size_t kMostNamed = 8;
  if (ranks.empty()) return {};
  std::string text = ranks.size() == 1 ? " among rank " : " among ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kMostNamed ? text + concat(" and ", ranks.size() - kMostNamed, " more") : text;
}

}  // namespace

std::string Call::text(std::span<const int> part) const {
  std::string text(detail::name_of(kind));
  if (kind == CallKind::barrier) return text + among(part);
  const int other = part.empty() ? peer : part[std::size_t(peer)];
  if (kind == CallKind::all_reduce || kind == CallKind::reduce_scatter) text += concat("(", refrain::name_of(op), ")");
  if (kind == CallKind::broadcast) text += concat(" from rank ", other);
  if (kind == CallKind::send) text += concat(" to rank ", other, " with tag ", tag);
  if (kind == CallKind::receive) text += concat(" from rank ", other, " with tag ", tag);
  const bool is_pieced = kind == CallKind::reduce_scatter || kind == CallKind::all_gather;
  return text +
         concat(" of ", is_pieced ? std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) : in.numel(), " ", dtype()) +
         among(part);
}

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

Rounds rounds_of(const Call& call, int world_size) {
  if (call.kind != CallKind::all_reduce && call.kind != CallKind::reduce_scatter) return {};
  if (world_size == 1 || call.in.numel() == 0) return {};
  const std::int64_t size = std::int64_t(size_of(call.dtype()));
  const std::int64_t to_all = call.in.bytes() * (world_size - 1);
  if (call.kind == CallKind::all_reduce && to_all <= kDirectBytes && to_all * (world_size - 2) <= kMoreBytes * world_size)
    return {.is_direct = true, .elements = call.in.numel(), .num_rounds = 1, .num_slots = 1};
  const std::int64_t longest = *std::max_element(call.counts.begin(), call.counts.end());
  const std::int64_t most = std::max<std::int64_t>(kSlotBytes / (world_size - 1) / size, 1024);
  const std::int64_t elements = std::min(longest, most);
  const std::int64_t num_rounds = (longest + elements - 1) / elements;
  return {.elements = elements, .num_rounds = num_rounds, .num_slots = num_rounds > 1 ? 2 : 1};
}

std::int64_t scratch_bytes(const Call& call, int world_size) {
  const Rounds rounds = rounds_of(call, world_size);
  return rounds.num_rounds == 0 ? 0 : rounds.scratch_elements(world_size) * std::int64_t(size_of(call.dtype()));
}

std::int64_t sent_bytes(const Call& call, int rank, int world_size) {
  if (call.kind == CallKind::barrier || world_size == 1) return 0;
  const std::int64_t others = world_size - 1, whole = call.in.bytes(), size = std::int64_t(size_of(call.dtype()));
  switch (call.kind) {
    case CallKind::all_reduce: {
      if (rounds_of(call, world_size).is_direct) return others * whole;
      const std::int64_t own = call.counts[std::size_t(rank)] * size;
      return whole - own + others * own;
    }
    case CallKind::reduce_scatter: return whole - call.counts[std::size_t(rank)] * size;
    case CallKind::all_gather: return others * whole;
    case CallKind::broadcast: return std::int64_t(tree_place(rank, call.peer, world_size).to.size()) * whole;
    case CallKind::send: return whole;
    case CallKind::receive:
    case CallKind::barrier: return 0;
  }
  return 0;
}

TreePlace tree_place(int rank, int root, int world_size) {
  // Binomial: the rank whose distance to the root lacks the highest bit sends to this one.
  const int distance = (rank - root + world_size) % world_size;
  TreePlace place{.from = -1, .to = {}};
  int bit = 1;
  while (bit <= distance) bit *= 2;
  if (distance > 0) place.from = (distance - bit / 2 + root) % world_size;
  for (; distance + bit < world_size; bit *= 2) place.to.push_back((distance + bit + root) % world_size);
  return place;
}

}  // namespace refrain::detail
