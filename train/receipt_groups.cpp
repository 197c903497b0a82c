#include <refrain/train/receipt_groups.h>

#include <refrain/core/check.h>

#include <algorithm>
#include <map>

namespace refrain {

namespace {

constexpr std::size_t kMostGroups = 12;
constexpr double kLeastShare = 0.01;   // of the peak: smaller groups are folded into "other"
constexpr double kLargeShare = 0.15;   // of the peak: larger groups are divided

using Path = std::vector<std::string>;

// {"blocks.*", "attention", "qkv"}: a number belongs to the name before it.
Path pattern_path(std::string_view module) {
  Path path;
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number) path.emplace_back(part);
    else if (path.empty()) path.emplace_back("*");
    else path.back() += ".*";
    begin = end + 1;
  }
  return path;
}

std::string joined(const Path& path) {
  std::string text;
  for (const std::string& part : path) text += (text.empty() ? "" : ".") + part;
  return text;
}

bool begins_with(const Path& path, const Path& start) {
  return path.size() >= start.size() && std::equal(start.begin(), start.end(), path.begin());
}

// What a kind's bytes in patterns would be as groups.
struct Cut {
  std::map<std::pair<MemoryKind, Path>, std::int64_t> leaves;  // bytes of every pattern there is
  std::map<std::pair<MemoryKind, Path>, std::int64_t> groups;

  // The leaves that belong to a group, the longest pattern winning.
  void count() {
    for (auto& [key, bytes] : groups) bytes = 0;
    for (const auto& [leaf, bytes] : leaves) {
      Path path = leaf.second;
      while (path.size() > 1 && !groups.contains({leaf.first, path})) path.pop_back();
      if (const auto group = groups.find({leaf.first, path}); group != groups.end()) group->second += bytes;
    }
  }

  // One level down from a group: itself, for its own bytes, and its children. False when there is nothing to tell apart.
  bool divide(const std::pair<MemoryKind, Path>& key) {
    std::map<Path, std::int64_t> children;
    for (const auto& [leaf, bytes] : leaves) {
      if (leaf.first != key.first || !begins_with(leaf.second, key.second) || leaf.second.size() == key.second.size()) continue;
      children[Path(leaf.second.begin(), leaf.second.begin() + std::ptrdiff_t(key.second.size() + 1))] += bytes;
    }
    const auto own = leaves.find(key);
    if (children.size() + (own != leaves.end() && own->second > 0 ? 1 : 0) < 2) return false;
    bool has_new = false;
    for (const auto& [path, bytes] : children) has_new |= groups.insert({{key.first, path}, 0}).second;
    count();
    return has_new;
  }
};

// Weights and what belongs to them are looked at as a whole; activations by the part that made them.
bool is_divisible(MemoryKind kind) { return kind == MemoryKind::saved || kind == MemoryKind::temporary || kind == MemoryKind::workspace; }

}  // namespace

std::string module_pattern(std::string_view module) { return joined(pattern_path(module)); }

std::string_view plural_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameter: return "parameters";
    case MemoryKind::gradient: return "gradients";
    case MemoryKind::optimizer_state: return "optimizer state";
    case MemoryKind::saved: return "saved activations";
    case MemoryKind::temporary: return "temporaries";
    case MemoryKind::workspace: return "workspaces";
    case MemoryKind::input: return "inputs";
    case MemoryKind::communication: return "communication buffers";
    case MemoryKind::staging: return "staging buffers";
  }
  return "";
}

ReceiptGroups::ReceiptGroups(std::span<const PeakEntry> peak) {
  Cut cut;
  std::int64_t total = 0;
  for (const PeakEntry& entry : peak) {
    const Path path = pattern_path(entry.module->text);
    cut.leaves[{entry.kind, path}] += entry.bytes;
    cut.groups[{entry.kind, Path(path.begin(), path.begin() + std::min<std::ptrdiff_t>(1, std::ptrdiff_t(path.size())))}] = 0;
    total += entry.bytes;
  }
  cut.count();
  const auto at_least = [&](double share) { return std::max<std::int64_t>(1, std::int64_t(share * double(total))); };
  const auto num_large = [&] {
    const auto is_large = [least = at_least(kLeastShare)](const auto& group) { return group.second >= least; };
    return std::size_t(std::count_if(cut.groups.begin(), cut.groups.end(), is_large));
  };
  // The largest first, as long as the list stays one to be read at a glance.
  std::map<std::pair<MemoryKind, Path>, bool> is_tried;
  while (num_large() < kMostGroups) {
    const std::pair<const std::pair<MemoryKind, Path>, std::int64_t>* largest = nullptr;
    for (const auto& group : cut.groups) {
      const bool is_candidate = is_divisible(group.first.first) && !is_tried[group.first] && group.second >= at_least(kLargeShare);
      if (is_candidate && (!largest || group.second > largest->second)) largest = &group;
    }
    if (!largest) break;
    const auto key = largest->first;
    is_tried[key] = true;
    const auto before = cut.groups;
    if (!cut.divide(key) || num_large() <= kMostGroups) continue;
    cut.groups = before;  // too many at once: another may still be divided
  }

  // What is small goes to the group around it, or to none.
  for (;;) {
    auto least = cut.groups.begin();
    for (auto group = cut.groups.begin(); group != cut.groups.end(); ++group)
      if (group->second < least->second) least = group;
    if (least == cut.groups.end() || (least->second >= at_least(kLeastShare) && cut.groups.size() <= kMostGroups)) break;
    cut.groups.erase(least);
    cut.count();
  }

  std::vector<std::pair<std::int64_t, Group>> found;
  std::int64_t rest = total;
  for (const auto& [key, bytes] : cut.groups) {
    const auto& [kind, path] = key;
    const bool has_parts = std::any_of(cut.groups.begin(), cut.groups.end(), [k = kind, p = path](const auto& other) {
      return other.first.first == k && other.first.second.size() > p.size() && !p.empty() && begins_with(other.first.second, p);
    });
    const std::string modules = joined(path);
    const std::string name = concat(plural_of(kind), modules.empty() ? " outside modules" : " of ", modules, has_parts ? ", rest" : "");
    found.push_back({bytes, {name, kind, modules, false, path}});
    rest -= bytes;
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [bytes, group] : found) groups_.push_back(std::move(group));
  if (rest > 0) groups_.push_back({"other", MemoryKind::temporary, "", true, {}});
}

std::size_t ReceiptGroups::find(MemoryKind kind, const ModulePath* module) const {
  const Path path = pattern_path(module->text);
  std::size_t best = groups_.size();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (group.is_other) {
      if (best == groups_.size()) best = i;
    } else if (group.kind == kind && begins_with(path, group.path) && (group.path.empty() ? path.empty() : true)) {
      if (best == groups_.size() || groups_[best].is_other || groups_[best].path.size() < group.path.size()) best = i;
    }
  }
  return best;
}

std::vector<std::int64_t> ReceiptGroups::bytes(std::span<const PeakEntry> peak) const {
  std::vector<std::int64_t> sums(groups_.size() + 1, 0);
  for (const PeakEntry& entry : peak) sums[find(entry.kind, entry.module)] += entry.bytes;
  return sums;
}

}  // namespace refrain
