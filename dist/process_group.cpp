// What is the same for every engine: a call is checked, its scratch taken and its bytes counted before it begins.
#include <refrain/dist/call.h>
#include <refrain/dist/process_group.h>

#include <algorithm>

namespace refrain {

using detail::Call;
using detail::CallKind;

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::max: return "max";
  }
  return "?";
}

void Work::wait() {
  if (pending_ == nullptr) return;
  const std::unique_ptr<detail::Pending> pending = std::move(pending_);
  pending->wait();
}

ProcessGroup::ProcessGroup(const Device& device, int rank, int world_size)
    : device_(device), rank_(rank), world_size_(world_size) {
  check(world_size >= 1 && rank >= 0 && rank < world_size, "process group: rank ", rank, " of a world of ", world_size);
}

Work ProcessGroup::issue(Call call) {
  const std::string_view name = detail::name_of(call.kind);
  for (const Tensor* t : {&call.in, &call.out}) {
    check(t->defined(), name, ": undefined tensor");
    check(t->device() == device_, name, ": tensor is on ", t->device(), ", the group on ", device_);
    check(t->is_contiguous(), name, ": tensor of ", t->shape(), " is not contiguous");
    check(t->dtype() == call.in.dtype(), name, ": ", call.in.dtype(), " in, ", t->dtype(), " out");
    check(t->has_bytes() || !device_.has_bytes() || t->numel() == 0, name, ": tensor has no bytes");
  }
  if (call.kind == CallKind::all_reduce || call.kind == CallKind::reduce_scatter) {
    check(call.op != ReduceOp::mean || is_floating(call.dtype()), name, ": a mean is for floating dtypes, got ", call.dtype());
    check(call.op == ReduceOp::max || call.dtype() != DType::boolean, name, ": bool has a max only");
  }
  check(call.peer >= 0 && call.peer < world_size_, name, ": rank ", call.peer, " of a world of ", world_size_);
  if (call.kind == CallKind::reduce_scatter || call.kind == CallKind::all_gather) {
    check(call.counts.size() == std::size_t(world_size_), name, ": ", call.counts.size(), " counts for ", world_size_, " ranks");
    std::int64_t total = 0;
    for (const std::int64_t count : call.counts) {
      check(count >= 0, name, ": a count of ", count);
      total += count;
    }
    const std::int64_t own = call.counts[std::size_t(rank_)];
    const Tensor &whole = call.kind == CallKind::all_gather ? call.out : call.in,
                 &piece = call.kind == CallKind::all_gather ? call.in : call.out;
    check(whole.numel() == total, name, ": counts add up to ", total, ", the whole has ", whole.numel(), " elements");
    check(piece.numel() == own, name, ": this rank's count is ", own, ", its piece has ", piece.numel(), " elements");
  }
  const std::int64_t bytes = detail::scratch_bytes(call, world_size_);
  if (bytes > 0) {
    const KindScope kind(MemoryKind::communication);
    const ContextScope op(&ThreadContext::op, name);
    call.scratch = empty({bytes}, DType::u8, device_);
  }
  if (call.kind != CallKind::send && call.out.storage() != nullptr) call.out.storage()->bump_version();
  bytes_sent_ += detail::sent_bytes(call, rank_, world_size_);
  return begin(std::move(call));
}

Work ProcessGroup::all_reduce(const Tensor& t, ReduceOp op) {
  Call call{.kind = CallKind::all_reduce, .in = t, .out = t, .op = op};
  for (int r = 0; t.defined() && r < world_size_; ++r)
    call.counts.push_back(t.numel() * (r + 1) / world_size_ - t.numel() * r / world_size_);
  return issue(std::move(call));
}

Work ProcessGroup::reduce_scatter(const Tensor& in, const Tensor& out, std::span<const std::int64_t> counts, ReduceOp op) {
  return issue({.kind = CallKind::reduce_scatter, .in = in, .out = out, .counts = {counts.begin(), counts.end()}, .op = op});
}

Work ProcessGroup::all_gather(const Tensor& in, const Tensor& out, std::span<const std::int64_t> counts) {
  return issue({.kind = CallKind::all_gather, .in = in, .out = out, .counts = {counts.begin(), counts.end()}});
}

Work ProcessGroup::broadcast(const Tensor& t, int root) {
  return issue({.kind = CallKind::broadcast, .in = t, .out = t, .peer = root});
}

Work ProcessGroup::send(const Tensor& t, int to, int tag) {
  check(to != rank_, "send: rank ", to, " is this one");
  return issue({.kind = CallKind::send, .in = t, .out = t, .peer = to, .tag = tag});
}

Work ProcessGroup::receive(const Tensor& t, int from, int tag) {
  check(from != rank_, "receive: rank ", from, " is this one");
  return issue({.kind = CallKind::receive, .in = t, .out = t, .peer = from, .tag = tag});
}

void ProcessGroup::barrier() { begin({.kind = CallKind::barrier}).wait(); }

std::unique_ptr<ProcessGroup> ProcessGroup::split(std::span<const int> ranks) {
  std::vector<bool> is_in(std::size_t(world_size_), false);
  for (const int r : ranks) {
    check(r >= 0 && r < world_size_, "split: rank ", r, " of a world of ", world_size_);
    check(!is_in[std::size_t(r)], "split: rank ", r, " comes twice");
    is_in[std::size_t(r)] = true;
  }
  check(is_in[std::size_t(rank_)], "split: rank ", rank_, " is not in its own list");

  // Everybody's list, and how many groups it has been in: a number that is new to all of a list is new to each.
  const std::int64_t width = world_size_ + 1;
  std::vector<std::int64_t> own(std::size_t(width), -1);
  own[0] = *num_groups_;
  std::copy(ranks.begin(), ranks.end(), own.begin() + 1);
  std::vector<std::int64_t> all;
  {
    const KindScope kind(MemoryKind::communication);
    const ContextScope op(&ThreadContext::op, std::string_view("split"));
    const Tensor in = empty({width}, DType::i64, device_), out = empty({width * world_size_}, DType::i64, device_);
    if (in.has_bytes()) set_bytes(in, std::as_bytes(std::span(own)));
    all_gather(in, out, std::vector<std::int64_t>(std::size_t(world_size_), width)).wait();
    if (out.has_bytes()) all = out.to_vector<std::int64_t>();
  }
  std::int64_t number = *num_groups_;
  if (!all.empty()) {
    const auto list_of = [&](std::int64_t r) { return std::span(all).subspan(std::size_t(r * width + 1), std::size_t(world_size_)); };
    for (std::int64_t r = 0; r < world_size_; ++r)
      for (const std::int64_t other : list_of(r))
        check(other < 0 || std::ranges::equal(list_of(r), list_of(other)), "split: rank ", r, " makes a group with rank ", other,
              ", whose own list is another");
    for (const int r : ranks) number = std::max(number, all[std::size_t(r * width)]);
  }
  *num_groups_ = number + 1;
  std::unique_ptr<ProcessGroup> group = part(ranks, number);
  group->num_groups_ = num_groups_;
  return group;
}

}  // namespace refrain
