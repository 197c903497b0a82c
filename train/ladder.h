// The memory ladder: ViT-L/16 with 10 classes, fine-tuned as in a well-known article on saving memory in PyTorch, rung by rung.
// Each rung has the figure published there and our plans of the same training: as it stands, and with what Refrain can do about
// its memory. GB are decimal, as in the article; its figures are the allocator's reserved peaks.
#pragma once

#include <refrain/train/config.h>

#include <string>
#include <vector>

namespace refrain {

// One training: a rung with what a column changes.
struct LadderEntry {
  std::string column;               // "plain", "A", "layerwise", "B", "C", "D", "budget"
  std::vector<std::string> flags;   // of refrain plan and refrain train
  double target_gb = 0;             // what arithmetic says it takes without the input; 0: not worked out
  int world_size = 1;               // figures are one rank's
  std::string note = {};            // what a budget has chosen
  std::string missing = {};         // why there is no plan of it; empty: there is

  std::int64_t peak_bytes = 0, input_bytes = 0, saved_bytes = 0, reserved_bytes = 0;
  std::int64_t host_bytes = 0;      // beside them, in host memory
  double step_flops = 0;            // of an optimizer step, all micro-batches
  double extra_flops_share = 0;     // against the rung's first column

  // Batch slots of the loader come on top of everything and are listed by themselves.
  std::int64_t bytes() const { return peak_bytes - input_bytes; }
  bool is_planned() const { return missing.empty(); }
};

struct LadderRung {
  std::string name;
  std::vector<double> published_gb;   // before and after, or one
  std::vector<LadderEntry> entries;   // in the order of the columns

  const LadderEntry* find(const std::string& column) const;
};

struct LadderColumn {
  std::string name, meaning;
};
const std::vector<LadderColumn>& ladder_columns();

// Plans the whole ladder, or the rungs with this name, two plans at a time.
// `device` is a word as a configuration has it.
std::vector<LadderRung> plan_ladder(const std::string& only = {}, const std::string& device = "cpu");

// The configuration of an entry, for refrain train's library calls.
Config ladder_config(const LadderEntry& entry);

std::string ladder_text(const std::vector<LadderRung>& rungs);
std::string ladder_json(const std::vector<LadderRung>& rungs);
std::string ladder_html(const std::vector<LadderRung>& rungs);  // one page that loads nothing

// What a training of some steps on made-up images took, and what its plan says.
struct LadderRun {
  std::int64_t steps = 0;
  std::int64_t planned_peak_bytes = 0, measured_peak_bytes = 0, planned_reserved_bytes = 0, measured_reserved_bytes = 0;
  double seconds = 0, last_loss = 0;
};
// Trains on this machine. Throws OutOfMemory where it cannot hold it.
LadderRun run_ladder_entry(const Config& config, std::int64_t steps);

}  // namespace refrain
