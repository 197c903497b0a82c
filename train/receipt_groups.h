// What is alive at a peak in a few groups: a kind of memory in a part of the model, such as "saved activations of
// blocks.*.mlp". The groups are cut for one peak and can then sort any other of a changed configuration.
#pragma once

#include <refrain/core/memory/ledger.h>

#include <span>
#include <string>
#include <vector>

namespace refrain {

// "blocks.3.attention.qkv" → "blocks.*.attention.qkv": repeated modules are one.
std::string module_pattern(std::string_view module);

// "saved activations" for MemoryKind::saved: the kind in a sentence, in the plural.
std::string_view plural_of(MemoryKind kind);

class ReceiptGroups {
 public:
  struct Group {
    std::string name;            // "saved activations of blocks.*.mlp"; of the last, perhaps, "other"
    MemoryKind kind = MemoryKind::temporary;
    std::string modules;         // the pattern; "" outside modules
    bool is_other = false;       // all that is in no other group, of every kind
    std::vector<std::string> path = {};  // the pattern cut at dots, a number with its name
  };

  ReceiptGroups() = default;  // none
  // Groups for a peak of this composition (Ledger::entries_at_peak). Large ones are divided by submodule, such as hold less
  // than 1 % are one: "other". At most 12 are made.
  explicit ReceiptGroups(std::span<const PeakEntry> peak);

  const std::vector<Group>& all() const { return groups_; }
  std::size_t size() const { return groups_.size(); }
  // The group of the longest pattern that the module's begins with; "other" where there is none, and size() without "other".
  std::size_t find(MemoryKind kind, const ModulePath* module) const;
  // The bytes of every group in a peak, and behind them those that are in none.
  std::vector<std::int64_t> bytes(std::span<const PeakEntry> peak) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace refrain
