// One call of a process group as engines see it, and what follows from sizes alone: pieces, scratch, bytes sent.
#pragma once

#include <refrain/dist/process_group.h>

#include <string>

namespace refrain::detail {

enum class CallKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, send, receive, barrier };
std::string_view name_of(CallKind kind);

struct Call {
  CallKind kind;
  Tensor in = {}, out = {};               // one tensor for what works in place
  std::vector<std::int64_t> counts = {};  // elements per rank, of what is cut into pieces
  ReduceOp op = ReduceOp::sum;
  int peer = 0, tag = 0;  // peer: root, receiver or sender
  Tensor scratch = {};    // undefined where none is needed

  DType dtype() const { return in.dtype(); }
  // "all_reduce(sum) of 4096 f32", and for a group that was split from a world "… among ranks 1, 3", by the world's ranks.
  std::string text(std::span<const int> part = {}) const;
};

// A reduction goes in rounds, so that its scratch stays small: in each the ranks exchange `elements` of every piece. A small one
// is sent to everybody whole instead, which is one exchange where a round is two: of two ranks that is as many bytes, of more ranks
// kMoreBytes more at most.
struct Rounds {
  bool is_direct = false;
  std::int64_t elements = 0, num_rounds = 0;
  int num_slots = 0;  // rounds in flight at once

  // Of what the other ranks send at a time.
  std::int64_t scratch_elements(int world_size) const { return num_slots * (world_size - 1) * elements; }
};
inline constexpr std::int64_t kDirectBytes = 1 << 20, kMoreBytes = 64 << 10, kSlotBytes = 4 << 20;
Rounds rounds_of(const Call& call, int world_size);

// Where piece r of `counts` begins; offsets[world_size] is the whole.
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& counts);

std::int64_t scratch_bytes(const Call& call, int world_size);
std::int64_t sent_bytes(const Call& call, int rank, int world_size);

// Ranks as a broadcast's tree sees them: who sends to `rank` (-1: the root), and to whom it sends on.
struct TreePlace {
  int from;
  std::vector<int> to;
};
TreePlace tree_place(int rank, int root, int world_size);

}  // namespace refrain::detail
