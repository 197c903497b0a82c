#include <refrain/kernels/emulator/ptx/syntax.h>

#include <charconv>

namespace refrain::emulator::ptx {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

struct NamedType {
  std::string_view name;
  Type type;
  std::size_t bytes;
};
constexpr NamedType kTypes[] = {
    {"pred", Type::pred, 0}, {"u8", Type::u8, 1}, {"u16", Type::u16, 2}, {"u32", Type::u32, 4}, {"u64", Type::u64, 8},
    {"s8", Type::s8, 1}, {"s16", Type::s16, 2}, {"s32", Type::s32, 4}, {"s64", Type::s64, 8}, {"b8", Type::b8, 1},
    {"b16", Type::b16, 2}, {"b32", Type::b32, 4}, {"b64", Type::b64, 8}, {"b128", Type::b128, 16}, {"f16", Type::f16, 2},
    {"bf16", Type::bf16, 2}, {"f32", Type::f32, 4}, {"f64", Type::f64, 8}, {"f16x2", Type::f16x2, 4}, {"bf16x2", Type::bf16x2, 4},
    {"tf32", Type::tf32, 4}};

bool opens(char c) { return c == '(' || c == '[' || c == '{'; }
bool closes(char c) { return c == ')' || c == ']' || c == '}'; }

// The position behind the bracket that closes the one at `start`.
std::size_t behind_closing(std::string_view text, std::size_t start) {
  int depth = 0;
  for (std::size_t i = start; i < text.size(); ++i) {
    if (opens(text[i])) ++depth;
    if (closes(text[i]) && --depth == 0) return i + 1;
  }
  throw Error("ptx: unbalanced brackets: " + std::string(text.substr(start, 60)));
}

}  // namespace

std::size_t size_of(Type type) {
  for (const NamedType& each : kTypes)
    if (each.type == type) return each.bytes;
  return 0;
}

Type parse_type(std::string_view text) {
  for (const NamedType& each : kTypes)
    if (each.name == text) return each.type;
  return Type::none;
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += opens(text[i]) - closes(text[i]);
    if (text[i] == separator && depth == 0) {
      parts.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    }
  }
  if (const auto last = trim(text.substr(start)); !last.empty()) parts.push_back(last);
  return parts;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(kSpace, at), text.size());
    found.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpace, end);
  }
  return found;
}

std::string without_comments(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size());
    else if (text.compare(i, 2, "/*") == 0) i = std::min(text.find("*/", i), text.size() - 2) + 2;
    else result += text[i++];
  }
  return result;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  int base = 10;
  if (text.size() > 2 && text[0] == '0') {
    const char kind = text[1];
    const bool is_float = kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D';
    if (is_float || kind == 'x' || kind == 'X') {
      base = 16;
      text.remove_prefix(2);
    }
  }
  if (text.ends_with('U')) text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return is_negative ? 0 - value : value;
}

Declarator parse_declarator(std::string_view text) {
  Declarator result;
  const auto bracket = text.find('[');
  result.name = trim(text.substr(0, bracket));
  if (bracket == std::string_view::npos) return result;
  result.is_array = true;
  for (auto at = bracket; at != std::string_view::npos; at = text.find('[', at + 1)) {
    const auto inside = trim(text.substr(at + 1, text.find(']', at) - at - 1));
    result.count *= inside.empty() ? 0 : parse_number(inside).value();
  }
  return result;
}

Declaration parse_declaration(std::string_view text) {
  Declaration result;
  const auto equals = text.find('=');
  if (equals != std::string_view::npos) result.initialiser = trim(text.substr(equals + 1));
  const auto parts = words(text.substr(0, equals));
  std::string declarator;
  bool is_pointee = false;  // `.param .u64 .ptr .global .align 1 name`: what follows .ptr is about what it points to
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string_view word = parts[i];
    if (word == ".ptr") is_pointee = true;
    else if (word == ".align") {
      const auto align = parse_number(parts.at(++i)).value();
      if (!is_pointee) result.align = align;
    } else if (is_pointee && word.starts_with('.')) continue;
    else if (word == ".global" || word == ".shared" || word == ".local" || word == ".const" || word == ".param")
      result.space = word.substr(1);
    else if (word == ".visible" || word == ".extern" || word == ".weak" || word == ".common") continue;
    else if (word.starts_with('.')) {
      const Type type = parse_type(word.substr(1));
      if (type == Type::none) throw Error("ptx: unknown declaration: " + std::string(text));
      result.type = type;
    } else {
      declarator += word;
    }
  }
  result.what = parse_declarator(declarator);
  if (result.type == Type::none || result.what.name.empty()) throw Error("ptx: unknown declaration: " + std::string(text));
  if (result.align == 0) result.align = size_of(result.type);
  return result;
}

std::vector<TopLevel> cut_module(std::string_view text) {
  std::vector<TopLevel> result;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == ';') {
      result.push_back({.head = trim(text.substr(start, i - start)), .body = {}, .has_body = false});
      start = ++i;
    } else if (text[i] == '{' && text.substr(start, i - start).find('=') == std::string_view::npos) {
      const auto end = behind_closing(text, i);
      result.push_back({.head = trim(text.substr(start, i - start)), .body = text.substr(i + 1, end - i - 2), .has_body = true});
      start = i = end;
    } else if (opens(text[i])) {
      i = behind_closing(text, i);
    } else if (text[i] == '\n') {
      // .version, .target, .address_size, .file and .loc end with their line.
      const auto line = trim(text.substr(start, i - start));
      for (const std::string_view word : {".version", ".target", ".address_size", ".file", ".loc"})
        if (line.starts_with(word)) start = i;
      ++i;
    } else {
      ++i;
    }
  }
  return result;
}

std::vector<Piece> cut_body(std::string_view body) {
  std::vector<Piece> pieces;
  std::size_t start = 0;
  for (std::size_t i = 0; i < body.size();) {
    const char c = body[i];
    const bool at_start = trim(body.substr(start, i - start)).empty();
    if (at_start && (c == '{' || c == '}')) {
      pieces.push_back({c == '{' ? Piece::open : Piece::close, body.substr(i, 1)});
      start = ++i;
    } else if (opens(c)) {
      i = behind_closing(body, i);
    } else if (c == ':' && (i + 1 == body.size() || body[i + 1] != ':') && (i == 0 || body[i - 1] != ':')) {
      pieces.push_back({Piece::label, trim(body.substr(start, i - start))});
      start = ++i;
    } else if (c == ';') {
      if (!at_start) pieces.push_back({Piece::statement, trim(body.substr(start, i - start))});
      start = ++i;
    } else if (c == '\n' && trim(body.substr(start, i - start)).starts_with(".loc")) {
      start = ++i;
    } else {
      ++i;
    }
  }
  return pieces;
}

}  // namespace refrain::emulator::ptx
