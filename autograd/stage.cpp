#include <refrain/autograd/random.h>
#include <refrain/autograd/stage.h>
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
  }
  return "?";
}

namespace {

// A contiguous part of a chain. Regions hold copies of it, so it outlives the call.
struct Segment {
  std::shared_ptr<const std::vector<std::shared_ptr<Stage>>> stages;
  SideInputs side;
  CheckpointOptions options;
  std::size_t begin, end;
};

Tensor run_stage(const Segment& segment, std::size_t index, const Tensor& hidden) {
  Stage& stage = *(*segment.stages)[index];
  StageScope stage_scope{std::uint32_t(index)};
  ModuleScope module_scope(stage.name());
  return stage.forward(hidden, segment.side);
}

// All stages are blocks here. Level 0 runs them; every level above splits into regions.
Tensor run_nested(const Segment& segment, int levels, Tensor hidden) {
  const std::size_t count = segment.end - segment.begin;
  if (levels == 0) {
    for (std::size_t i = segment.begin; i < segment.end; ++i) hidden = run_stage(segment, i, hidden);
    return hidden;
  }
  // With l levels of n blocks left each region takes n^((l-1)/l) of them, so that all levels hold equally many.
  const double share = std::pow(double(count), double(levels - 1) / double(levels));
  const std::size_t length = std::clamp<std::size_t>(std::size_t(std::ceil(share - 1e-9)), 1, count);
  for (std::size_t begin = segment.begin; begin < segment.end; begin += length) {
    Segment part = segment;
    part.begin = begin;
    part.end = std::min(begin + length, segment.end);
    // A region around one block is the innermost one.
    const int inner = part.end - part.begin == 1 ? 0 : levels - 1;
    hidden = checkpoint(segment.options, [part, inner](const Tensor& h) { return run_nested(part, inner, h); }, hidden);
  }
  return hidden;
}

}  // namespace

Tensor run_chain(const std::vector<std::shared_ptr<Stage>>& stages, Tensor hidden, const SideInputs& side, const CheckpointPolicy& policy) {
  check(policy.kind != CheckpointKind::nested || policy.levels >= 1, "nested checkpoints need at least 1 level, got ", policy.levels);
  int levels = 1;
  if (policy.kind == CheckpointKind::none) levels = 0;
  if (policy.kind == CheckpointKind::nested) levels = policy.levels;
  Segment segment{std::make_shared<const std::vector<std::shared_ptr<Stage>>>(stages), side, {{}, policy.certify}, 0, 0};
  if (policy.kind == CheckpointKind::selective) segment.options.keep = policy.keep;
  for (std::size_t i = 0; i < stages.size();) {
    segment.begin = i;
    segment.end = i + 1;
    if (stages[i]->is_block()) {
      while (segment.end < stages.size() && stages[segment.end]->is_block()) ++segment.end;
    }
    hidden = run_nested(segment, stages[i]->is_block() ? levels : 0, std::move(hidden));
    i = segment.end;
  }
  return hidden;
}

}  // namespace refrain
