// Formats: proc(5), cgroups(7), and the kernel's cgroup-v2 and cgroup-v1/memory documentation.
#include <refrain/core/cpu/available_memory.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace refrain {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// A count of bytes; "max", and numbers beyond an int64, are no limit.
std::optional<std::int64_t> parse(const std::string& word) {
  if (word == "max") return kMax;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc::result_out_of_range) return kMax;
  if (error != std::errc{} || end != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

// The first word of a file.
std::optional<std::int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse(word);
}

// The number behind `key` in a file of lines "key number …".
std::optional<std::int64_t> read_entry(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return parse(value);
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& parts, const std::string& part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); }

// mountinfo writes a blank as \040, and so on.
std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size() && text.find_first_not_of("01234567", i + 1) > i + 3;
    if (is_escape) {
      out += char((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  fs::path point;
  std::string root;  // the group that is mounted there
};

// Where the hierarchy that governs memory is mounted. Lines are "id parent dev ROOT POINT options … - TYPE source OPTIONS".
std::optional<Mount> find_mount(const fs::path& root, bool is_v2) {
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (dash - words.begin() < 6 || words.end() - dash < 4) continue;
    if (is_v2 ? dash[1] != "cgroup2" : dash[1] != "cgroup" || !contains(split(dash[3], ','), "memory")) continue;
    return Mount{root / fs::path(unescaped(words[4])).relative_path(), unescaped(words[3])};
  }
  return std::nullopt;
}

// What one group has left; none where it sets no limit.
std::int64_t left_in(const fs::path& group, bool is_v2) {
  std::int64_t limit = kMax;
  for (const char* name : is_v2 ? std::vector{"memory.max", "memory.high"} : std::vector{"memory.limit_in_bytes"})
    limit = std::min(limit, read_number(group / name).value_or(kMax));
  const std::optional<std::int64_t> used = read_number(group / (is_v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (limit == kMax || !used || *used == kMax) return kMax;
  const std::int64_t cache = read_entry(group / "memory.stat", is_v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  const std::int64_t held = std::max<std::int64_t>(*used - std::min(cache, *used), 0);
  return std::max<std::int64_t>(limit - held, 0);
}

// The least of the group at `path`, as /proc/self/cgroup names it, and its parents, as far as they are mounted.
std::int64_t left_in_all(const Mount& mount, std::string path, bool is_v2) {
  // In a container the path may be the host's, of which the mount shows a part.
  const bool is_below = path.rfind(mount.root, 0) == 0 && (path.size() == mount.root.size() || path[mount.root.size()] == '/');
  if (mount.root != "/" && is_below) path.erase(0, mount.root.size());
  fs::path group = fs::path(path).lexically_normal().relative_path();
  std::int64_t left = left_in(mount.point, is_v2);
  if (group.empty() || *group.begin() == "..") return left;  // outside of what is mounted
  for (; !group.empty(); group = group.parent_path()) left = std::min(left, left_in(mount.point / group, is_v2));
  return left;
}

}  // namespace

std::int64_t available_memory(const fs::path& root) {
  std::int64_t left = kMax;
  for (const char* key : {"MemAvailable:", "MemFree:"}) {
    const std::optional<std::int64_t> kib = read_entry(root / "proc/meminfo", key);
    if (!kib) continue;
    if (*kib <= kMax / 1024) left = *kib * 1024;
    break;
  }
  // Lines are "id:controllers:path"; v2 has id 0 and no controllers.
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && !contains(split(controllers, ','), "memory")) continue;
    if (const std::optional<Mount> mount = find_mount(root, is_v2)) left = std::min(left, left_in_all(*mount, line.substr(second + 1), is_v2));
  }
  return left;
}

}  // namespace refrain
