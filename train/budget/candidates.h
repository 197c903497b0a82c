// What a budget chooses from: checkpoint settings of one configuration, in a fixed order, each of which is planned exactly.
#pragma once

#include <refrain/train/plan.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace refrain {

struct CheckpointCandidate {
  std::string checkpoint = "none";   // none, block, nested, selective or custom
  std::int64_t levels = 2;           // of nested
  std::vector<std::string> keep = {}, parts = {};
  std::int64_t replayed_flops = 0;   // of a window, as measured stage by stage
  std::int64_t kept_bytes = 0;       // no more than embedding and blocks keep when the loss is known
  bool is_beside_gradients = false;  // that is then in addition to the gradients of all parameters, of a micro-batch before
  std::int64_t peak_estimate = 0;    // beside what exists all the time; 0: not known

  // The configuration with these settings instead of its own.
  Config in(Config config) const;
  // "none", or such as "blocks 0-3 none, 4-11 block keep attention".
  std::string text() const;
  // The flags that make them, such as --checkpoint block.
  std::string flags() const;
};

// The configuration without regions, and without a budget that would choose them.
Config without_checkpoints(Config config);

// At most some 30: the Pareto front of kept bytes and replayed FLOPs over all regions and keep-lists (chain_budget.h), thinned,
// and the uniform policies; cheapest first, in an order that depends on nothing but the configuration without its checkpoint
// and memory keys. `config` need not be resolved. Throws InvalidArgument as plan_training() does.
std::vector<CheckpointCandidate> checkpoint_candidates(const Config& config, const PlanOptions& options = {});

// The uniform ones alone, measured with less work: none, selective, block, nested.
std::vector<CheckpointCandidate> uniform_candidates(const Config& config, const PlanOptions& options = {});

// What a training takes from the system, and what it costs.
struct PlannedCost {
  std::int64_t bytes = 0;            // reserved by the arena
  Cost step;                         // of a whole window with its update
  double flops = 0, replayed_flops = 0;  // of all steps
  double extra_flops_share() const { return flops > replayed_flops ? replayed_flops / (flops - replayed_flops) : 0; }
};

// plan_training(), asked once for a configuration and the sizes of its data.
PlannedCost planned_cost(const Config& config, const PlanOptions& options = {});

// Bounds from below, planned without packing and counting of work: a third of a plan's time.
struct TensorBytes {
  std::int64_t peak = 0;        // the most that tensors ask for at a time; the arena holds no less, however blocks are laid out
  // Of these kinds, the most at a time. The first two exist all the time and are alike under every candidate.
  std::int64_t parameters = 0;  // and optimizer state
  std::int64_t inputs = 0;
  std::int64_t gradients = 0;   // of parameters
};
TensorBytes tensor_bytes(const Config& config, const PlanOptions& options = {});

// No more than the peak under `candidate`, by what one plan of the same configuration says, under whichever candidate: what exists
// all the time, and beside it either the gradients of an update that comes after the window, or what the candidate keeps.
std::int64_t least_possible(const TensorBytes& planned, const Config& config, const CheckpointCandidate& candidate);

struct FirstFit {
  std::ptrdiff_t index = -1;   // of the first candidate within the budget; -1: none is
  PlannedCost planned = {};    // of it
};

// The first candidate, in the given order, whose planned bytes are within the budget.
//
// A lower budget never gets a higher peak. Let candidate c be the first within budget B, and B' < B. All candidates within B' are
// within B, so none before c is. If c is within B' it is the first again; if not, what is taken has at most B' bytes, and c more.
//
// Candidates that cannot be within are not planned to the end: least_possible() and then the tensors' own peak say so before.
// `lasting`: bytes that are known to exist all the time. Two candidates are planned at a time.
FirstFit first_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t budget, const PlanOptions& options = {},
                   std::int64_t lasting = 0);

struct LeastFit {
  std::size_t index = 0;
  PlannedCost planned = {};
};

// The candidate that takes least, if that is below `below`. Candidates whose estimate is above the least found are not planned;
// estimates are good to a few per cent. What is said of the candidate is exact.
std::optional<LeastFit> least_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t below,
                                  const PlanOptions& options = {});

}  // namespace refrain
