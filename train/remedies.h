// What would make a peak lower, and what it would cost. Every number comes from planning the changed configuration; nothing
// is estimated, and a change that does not help is not listed.
#pragma once

#include <refrain/train/plan.h>
#include <refrain/train/receipt.h>

#include <string>
#include <vector>

namespace refrain {

enum class RemedyEffect : std::uint8_t {
  same_bits,  // every weight of the training keeps every bit
  rounding,   // the same sums in another order
  results     // another precision or another optimizer: another training
};
// "same bits", "same up to rounding", "changes results".
std::string_view name_of(RemedyEffect effect);

struct Remedy {
  std::string name;                // "checkpoint every block"
  std::vector<std::string> flags;  // {"--checkpoint", "block"}: for refrain plan and train, and for with_flags()
  RemedyEffect effect = RemedyEffect::same_bits;
  std::string_view family = {};    // changes of one family exclude each other: "checkpoint", "update", "micro-batch", …

  // As planned with the flags.
  std::int64_t peak_bytes = 0, reserved_bytes = 0;
  std::int64_t saved_bytes = 0;           // the peak's difference
  double extra_flops_share = 0;           // of all steps: 0.3 is 30 % more work
  std::vector<std::int64_t> group_bytes = {};  // of each of the receipt's groups, at the new peak

  std::string flags_text() const;
};

struct Remedies {
  std::vector<Remedy> single, combined;  // lower peaks first

  // Those of `single` that lower the group's bytes at the peak and do not raise the peak, largest saving first. They point into this.
  std::vector<const Remedy*> of_group(const Receipt& receipt, std::size_t group) const;
};

// Plans every change that applies to the configuration and keeps those that lower the peak or a group's share of it.
// `config` and `options` are what `base` was planned from. Two plans at a time run on threads of their own.
Remedies plan_remedies(const Config& config, const PlanOptions& options, const Plan& base, const Receipt& receipt);

// The receipt by groups for a terminal, each with the remedies that save most.
std::string receipt_text(const Receipt& receipt, const Remedies& remedies = {});

}  // namespace refrain
