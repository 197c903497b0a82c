#include <refrain/autograd/random.h>
#include <refrain/autograd/session.h>
#include <refrain/autograd/stage.h>
#include <refrain/autograd/stage_keeper.h>
#include <refrain/core/context.h>

#include <algorithm>
#include <cmath>

namespace refrain {

CheckpointKind CheckpointPolicy::parse_kind(std::string_view word) {
  for (CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block, CheckpointKind::nested, CheckpointKind::selective}) {
    if (word == name_of(kind)) return kind;
  }
  fail("checkpoint policy must be none, block, nested or selective, got '", word, "'");
}

std::string_view name_of(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::none: return "none";
    case CheckpointKind::block: return "block";
    case CheckpointKind::nested: return "nested";
    case CheckpointKind::selective: return "selective";
    case CheckpointKind::custom: return "custom";
  }
  return "?";
}

namespace {

// All stages of begin … end are blocks. Level 0 are the stages themselves; every level above splits into regions.
std::vector<ChainPart> split(std::size_t begin, std::size_t end, int levels) {
  std::vector<ChainPart> parts;
  if (levels == 0) return parts;
  // With l levels of n blocks left each region takes n^((l-1)/l) of them, so that all levels hold equally many.
  const std::size_t count = end - begin;
  const double share = std::pow(double(count), double(levels - 1) / double(levels));
  const std::size_t length = std::clamp<std::size_t>(std::size_t(std::ceil(share - 1e-9)), 1, count);
  for (std::size_t first = begin; first < end; first += length) {
    const std::size_t last = std::min(first + length, end);
    // A region around one block is the innermost one.
    parts.push_back({first, last, true, {}, split(first, last, last - first == 1 ? 0 : levels - 1)});
  }
  return parts;
}

// Whether the parts cover begin … end once, in order, with blocks alone in regions and keep-lists where they work.
void check_parts(std::span<const ChainPart> parts, std::size_t begin, std::size_t end, bool is_in_region, std::span<const std::shared_ptr<Stage>> stages) {
  std::size_t next = begin;
  for (const ChainPart& part : parts) {
    check(part.begin == next && part.end > part.begin && part.end <= end, "checkpoint parts: expected one that begins at stage ", next,
          " and ends by ", end, ", got ", part.begin, " to ", part.end);
    const bool is_region = is_in_region || part.is_region;
    for (std::size_t i = part.begin; i < part.end; ++i)
      check(!is_region || stages[i]->is_block(), "checkpoint parts: stage '", stages[i]->name(), "' is no block and cannot be in a region");
    check(part.keep.empty() || (part.is_region && part.parts.empty()), "checkpoint parts: stages ", part.begin, " to ", part.end,
          " name ops to keep, which is for regions without inner parts");
    if (!part.parts.empty()) check_parts(part.parts, part.begin, part.end, is_region, stages);
    next = part.end;
  }
  check(next == end, "checkpoint parts: stages from ", next, " to ", end, " are in none");
}

}  // namespace

StageKeeper* stage_keeper() { return detail::autograd_state().keeper; }

StageKeeperScope::StageKeeperScope(StageKeeper* keeper) : old_(detail::autograd_state().keeper) { detail::autograd_state().keeper = keeper; }
StageKeeperScope::~StageKeeperScope() { detail::autograd_state().keeper = old_; }

Tensor run_inside(const std::shared_ptr<const ChainRun>& run, const ChainPart& part, Tensor hidden) {
  for (const ChainPart& inner : part.parts) hidden = run_part(run, inner, std::move(hidden));
  if (!part.parts.empty()) return hidden;
  for (std::size_t i = part.begin; i < part.end; ++i) {
    Stage& stage = *run->stages[i];
    StageScope stage_scope{std::uint32_t(i)};
    if (StageKeeper* keeper = detail::autograd_state().keeper) keeper->enter(std::uint32_t(i));
    ModuleScope module_scope(stage.name());
    hidden = stage.forward(hidden, run->side);
  }
  return hidden;
}

Tensor run_part(const std::shared_ptr<const ChainRun>& run, const ChainPart& part, Tensor hidden) {
  if (!part.is_region) return run_inside(run, part, std::move(hidden));
  return checkpoint({part.keep, run->certify, run->offload}, [run, &part](const Tensor& h) { return run_inside(run, part, h); }, hidden);
}

std::vector<ChainPart> partition(const CheckpointPolicy& policy, std::span<const std::shared_ptr<Stage>> stages) {
  if (policy.kind == CheckpointKind::custom) {
    check_parts(policy.parts, 0, stages.size(), false, stages);
    return policy.parts;
  }
  check(policy.kind != CheckpointKind::nested || policy.levels >= 1, "nested checkpoints need at least 1 level, got ", policy.levels);
  int levels = 1;
  if (policy.kind == CheckpointKind::none) levels = 0;
  if (policy.kind == CheckpointKind::nested) levels = policy.levels;
  std::vector<ChainPart> parts;
  for (std::size_t begin = 0, end = 0; begin < stages.size(); begin = end) {
    end = begin + 1;
    if (levels == 0 || !stages[begin]->is_block()) {
      parts.push_back({begin, end, false, {}, {}});
      continue;
    }
    while (end < stages.size() && stages[end]->is_block()) ++end;
    for (ChainPart& part : split(begin, end, levels)) parts.push_back(std::move(part));
  }
  if (policy.kind == CheckpointKind::selective) {
    for (ChainPart& part : parts) {
      if (part.is_region) part.keep = policy.keep;
    }
  }
  return parts;
}

Tensor run_chain(const std::vector<std::shared_ptr<Stage>>& stages, Tensor hidden, const SideInputs& side, const CheckpointPolicy& policy) {
  const auto run = std::make_shared<const ChainRun>(ChainRun{stages, partition(policy, stages), side, policy.certify, policy.offload});
  for (const ChainPart& part : run->parts) hidden = run_part(run, part, std::move(hidden));
  return hidden;
}

}  // namespace refrain
