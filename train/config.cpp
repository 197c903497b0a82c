#include <refrain/train/config.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/config_keys.h>
#include <refrain/train/presets.h>

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

namespace refrain {

namespace {

using detail::for_each_key;
using detail::Key;

constexpr auto kNoSection = [](std::string_view) {};

// A double that is an integer, exactly.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return {};
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return {};
  return value;
}

std::optional<ByteCount> parse_bytes(std::string_view text) {
  static const std::pair<std::string_view, double> kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                                               {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}, {"B", 1}};
  double unit = 1;
  for (const auto& [name, factor] : kUnits)
    if (text.ends_with(name)) {
      text.remove_suffix(name.size());
      unit = factor;
      break;
    }
  while (text.ends_with(' ')) text.remove_suffix(1);
  const std::optional<double> number = parse_double(text);
  if (!number || !(*number >= 0) || *number * unit > 9e18) return {};
  return ByteCount{std::int64_t(std::llround(*number * unit))};
}

std::string number_text(double value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // so that TOML reads it as a float again
  return text;
}

// What errors say a field should be, its value from TOML, and its value from a flag; one overload set a type.
template <class T> struct FieldType;

template <> struct FieldType<std::string> {
  static constexpr std::string_view expected = "a string";
  static std::optional<std::string> from(const toml::node& node) { return node.value_exact<std::string>(); }
  static std::optional<std::string> from(const std::string& flag) { return flag; }
  static std::string text(const std::string& value) {
    std::string out = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        out += concat("\\u00", "0123456789abcdef"[c >> 4 & 15], "0123456789abcdef"[c & 15]);
      else out += c;
    }
    return out + '"';
  }
};
template <> struct FieldType<bool> {
  static constexpr std::string_view expected = "true or false";
  static std::optional<bool> from(const toml::node& node) { return node.value_exact<bool>(); }
  static std::optional<bool> from(const std::string& flag) {
    if (flag == "true") return true;
    if (flag == "false") return false;
    return {};
  }
  static std::string text(bool value) { return value ? "true" : "false"; }
};
template <> struct FieldType<std::int64_t> {
  static constexpr std::string_view expected = "an integer";
  static std::optional<std::int64_t> from(const toml::node& node) { return node.value_exact<std::int64_t>(); }
  static std::optional<std::int64_t> from(const std::string& flag) { return parse_integer(flag); }
  static std::string text(std::int64_t value) { return std::to_string(value); }
};
template <> struct FieldType<double> {
  static constexpr std::string_view expected = "a number";
  static std::optional<double> from(const toml::node& node) {
    if (node.is_integer()) return double(*node.value_exact<std::int64_t>());
    return node.value_exact<double>();
  }
  static std::optional<double> from(const std::string& flag) { return parse_double(flag); }
  static std::string text(double value) { return number_text(value); }
};
template <> struct FieldType<ByteCount> {
  static constexpr std::string_view expected = "bytes, such as 1000000 or \"800MiB\"";
  static std::optional<ByteCount> from(const toml::node& node) {
    if (const auto number = node.value_exact<std::int64_t>()) return *number >= 0 ? std::optional(ByteCount{*number}) : std::nullopt;
    if (const auto text_value = node.value_exact<std::string>()) return parse_bytes(*text_value);
    return {};
  }
  static std::optional<ByteCount> from(const std::string& flag) { return parse_bytes(flag); }
  static std::string text(ByteCount value) { return std::to_string(value.value); }
};
template <class T> struct FieldType<std::vector<T>> {
  static constexpr std::string_view expected = std::is_same_v<T, double> ? "a list of numbers" : "a list of strings";
  static std::optional<std::vector<T>> from(const toml::node& node) {
    const toml::array* array = node.as_array();
    if (!array) return {};
    std::vector<T> values;
    for (const toml::node& item : *array) {
      const std::optional<T> value = FieldType<T>::from(item);
      if (!value) return {};
      values.push_back(*value);
    }
    return values;
  }
  static std::optional<std::vector<T>> from(const std::string& flag) {  // separated by commas; "" is the empty list
    std::vector<T> values;
    for (std::size_t begin = 0; begin < flag.size();) {
      const std::size_t comma = std::min(flag.find(',', begin), flag.size());
      const std::optional<T> value = FieldType<T>::from(flag.substr(begin, comma - begin));
      if (!value) return {};
      values.push_back(*value);
      begin = comma + 1;
    }
    return values;
  }
  static std::string text(const std::vector<T>& values) {
    std::string out = "[";
    for (std::size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + FieldType<T>::text(values[i]);
    return out + "]";
  }
};

std::string short_number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

void check_range(const std::string& where, const Key& key, double value) {
  check(value >= key.min && value <= key.max, where, ": expected ", short_number(key.min), " to ", short_number(key.max), ", got ",
        short_number(value));
}
void check_value(const std::string& where, const Key& key, std::int64_t value) { check_range(where, key, double(value)); }
void check_value(const std::string& where, const Key& key, double value) { check_range(where, key, value); }
void check_value(const std::string& where, const Key& key, ByteCount value) { check_range(where, key, double(value.value)); }
void check_value(const std::string&, const Key&, bool) {}
void check_value(const std::string&, const Key&, const std::vector<std::string>&) {}
void check_value(const std::string& where, const Key& key, const std::vector<double>& values) {
  for (const double value : values)
    check(std::isfinite(value) && value >= key.min && value <= key.max, where, ": value ", value, " is out of range");
}
void check_value(const std::string& where, const Key& key, const std::string& value) {
  if (key.choices.empty()) return;
  std::vector<std::string> choices;
  for (std::size_t begin = 0; begin <= key.choices.size();) {
    const std::size_t bar = std::min(key.choices.find('|', begin), key.choices.size());
    choices.emplace_back(key.choices.substr(begin, bar - begin));
    begin = bar + 1;
  }
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices)
    if (!choice.empty()) list += (list.empty() ? "" : ", ") + choice;
  const std::string nearest = nearest_name(value, choices);
  fail(where, ": expected one of ", list, "; got '", value, "'", nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  const Config config;
  for_each_key(config, kNoSection, [&](const Key& key, const auto&) { names.emplace_back(key.name); });
  return names;
}

bool is_flag_key(const std::string& name) {
  bool is_bool = false;
  const Config config;
  for_each_key(config, kNoSection, [&](const Key& key, const auto& field) {
    if (key.name == name) is_bool = std::is_same_v<std::decay_t<decltype(field)>, bool>;
  });
  return is_bool;
}

// A value somebody gave, from the file or a flag, with where it was given.
struct Given {
  std::string where;
  const toml::node* node = nullptr;
  std::string flag;
};
using GivenValues = std::map<std::string, Given, std::less<>>;

void assign(Config& config, const GivenValues& given) {
  for_each_key(config, kNoSection, [&](const Key& key, auto& field) {
    using Type = FieldType<std::decay_t<decltype(field)>>;
    const auto found = given.find(key.name);
    if (found == given.end()) return;
    const Given& value = found->second;
    const auto parsed = value.node ? Type::from(*value.node) : Type::from(value.flag);
    if (!parsed && value.node) {
      std::ostringstream kind;
      kind << value.node->type();
      fail(value.where, ": expected ", Type::expected, ", got ", kind.str() == "array" ? "a list" : kind.str());
    }
    check(parsed.has_value(), value.where, ": expected ", Type::expected, ", got '", value.flag, "'");
    check_value(value.where, key, *parsed);
    field = *parsed;
  });
}

[[noreturn]] void fail_unknown(const std::string& where, std::string_view kind, const std::string& name, const std::string& prefix) {
  const std::string nearest = nearest_name(name, key_names());
  std::string suggestion = nearest;
  if (prefix == "--") std::replace(suggestion.begin(), suggestion.end(), '_', '-');
  fail(where, ": unknown ", kind, " '", prefix, name, "'", nearest.empty() ? "" : "; did you mean '" + prefix + suggestion + "'?");
}

void collect_flags(std::span<const std::string> flags, GivenValues& given) {
  const std::vector<std::string> names = key_names();
  const auto is_known = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const std::string& argument = flags[i];
    check(argument.starts_with("--"), "unexpected argument '", argument, "'; flags begin with --");
    const std::size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    const std::string shown = "--" + name;
    std::replace(name.begin(), name.end(), '-', '_');
    if (equals == std::string::npos && name.starts_with("no_") && is_flag_key(name.substr(3))) {
      given[name.substr(3)] = {shown, nullptr, "false"};
      continue;
    }
    if (!is_known(name)) fail_unknown("command line", "flag", name, "--");
    if (equals != std::string::npos) {
      given[name] = {shown, nullptr, argument.substr(equals + 1)};
    } else if (is_flag_key(name)) {
      const bool has_value = i + 1 < flags.size() && (flags[i + 1] == "true" || flags[i + 1] == "false");
      given[name] = {shown, nullptr, has_value ? flags[++i] : "true"};
    } else {
      check(i + 1 < flags.size(), shown, ": expected a value after it");
      given[name] = {shown, nullptr, flags[++i]};
    }
  }
}

}  // namespace

std::string nearest_name(const std::string& name, std::span<const std::string> known) {
  // Insertions, deletions, replacements and swaps of neighbours ("optimal string alignment").
  const auto distance = [](const std::string& a, const std::string& b) {
    std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
      for (std::size_t j = 0; j <= b.size(); ++j) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        d[i][j] = std::min({d[i - 1][j - 1] + (a[i - 1] != b[j - 1]), d[i - 1][j] + 1, d[i][j - 1] + 1});
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    return d[a.size()][b.size()];
  };
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;  // farther than that is no misspelling
  for (const std::string& candidate : known) {
    if (candidate.empty()) continue;
    const std::size_t d = distance(name, candidate);
    if (d < best_distance) best = candidate, best_distance = d;
  }
  return best;
}

Config load_config(const std::filesystem::path& path, std::span<const std::string> flags) {
  const std::string file = path.string();
  GivenValues given;
  toml::table table;
  if (!path.empty()) {
    try {
      table = toml::parse(read_text_file(path, std::int64_t{1} << 20), file);
    } catch (const toml::parse_error& error) {
      fail(file, ":", error.source().begin.line, ": ", error.description());
    }
  }
  const std::vector<std::string> names = key_names();
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = concat(file, ":", key.source().begin.line);
    check(!node.is_table() || std::find(names.begin(), names.end(), name) != names.end(), where, ": unexpected table [", name,
          "]; keys stand without tables");
    if (std::find(names.begin(), names.end(), name) == names.end()) fail_unknown(where, "key", name, "");
    given[name] = {concat(where, ": ", name), &node, ""};
  }
  collect_flags(flags, given);

  Config config;
  if (const auto preset = given.find("preset"); preset != given.end()) {
    assign(config, GivenValues{*preset});
    apply_preset(config);
  }
  assign(config, given);
  check_config(config);
  return config;
}

Config with_flags(Config config, std::span<const std::string> flags) {
  GivenValues given;
  collect_flags(flags, given);
  assign(config, given);
  check_config(config);
  return config;
}

Arguments split_arguments(std::span<const std::string> arguments) {
  Arguments split;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--")) {
      split.positional.push_back(argument);
      continue;
    }
    split.flags.push_back(argument);
    if (argument.find('=') != std::string::npos) continue;
    std::string name = argument.substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    const bool stands_alone = is_flag_key(name) || (name.starts_with("no_") && is_flag_key(name.substr(3)));
    const bool has_value = i + 1 < arguments.size() && (!stands_alone || arguments[i + 1] == "true" || arguments[i + 1] == "false");
    if (has_value) split.flags.push_back(arguments[++i]);
  }
  return split;
}

std::string to_toml(const Config& config) {
  std::string out;
  for_each_key(
      config, [&](std::string_view title) { out += concat(out.empty() ? "" : "\n", "# ", title, "\n"); },
      [&](const Key& key, const auto& field) {
        const std::string line = concat(key.name, " = ", FieldType<std::decay_t<decltype(field)>>::text(field));
        out += concat(line, std::string(line.size() < 34 ? 34 - line.size() : 1, ' '), "# ", key.meaning, "\n");
      });
  return out;
}

std::string config_help() {
  std::string out;
  const Config defaults;
  for_each_key(
      defaults, [&](std::string_view title) { out += concat("\n", title, ":\n"); },
      [&](const Key& key, const auto& field) {
        std::string flag = concat("  --", key.name);
        std::replace(flag.begin(), flag.end(), '_', '-');
        flag.resize(std::max<std::size_t>(flag.size() + 2, 24), ' ');
        out += concat(flag, key.meaning);
        if (!key.choices.empty()) out += concat(" (", key.choices.substr(key.choices[0] == '|'), ")");
        out += concat(" [", FieldType<std::decay_t<decltype(field)>>::text(field), "]\n");
      });
  return out;
}

}  // namespace refrain
