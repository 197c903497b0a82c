#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/syntax.h>

namespace refrain::emulator::ptx {

namespace {

int column_bytes(Type type) { return type == Type::pred ? 0 : size_of(type) > 4 ? 8 : 4; }

std::string_view class_suffix(Type type) {
  switch (type) {
    case Type::f32: case Type::f64: return ".f";
    case Type::f16: case Type::bf16: case Type::f16x2: case Type::bf16x2: return ".h";
    default: return "";
  }
}

}  // namespace

const Table& instruction_table() {
  static const Table table = [] {
    Table all;
    for (const auto add : {add_integers, add_bits, add_floats, add_halves, add_comparisons, add_conversions, add_moves,
                           add_memory, add_atomics, add_control, add_warp, add_matrix, add_async})
      add(all);
    return all;
  }();
  return table;
}

Decoder::Decoder(std::string_view text, Names& names, Function& function) : text_(text), names_(names), function_(function) {}

Instruction Decoder::decode() {
  Instruction out;
  std::string_view rest = text_;
  if (rest.starts_with('@')) {
    const auto end = rest.find_first_of(" \t\r\n");
    std::string_view guard = rest.substr(1, end - 1);
    out.is_guard_negated = guard.starts_with('!');
    if (out.is_guard_negated) guard.remove_prefix(1);
    out.guard = source(guard, Type::pred);
    rest = trim(rest.substr(end));
  }
  const auto end = std::min(rest.find_first_of(" \t\r\n"), rest.size());
  qualifiers_ = split(rest.substr(0, end), '.');
  name_ = qualifiers_.front();
  qualifiers_.erase(qualifiers_.begin());
  operands_ = split(trim(rest.substr(end)), ',');
  const Table& table = instruction_table();
  auto found = table.end();
  if (const std::string_view suffix = class_suffix(peek_type()); !suffix.empty())
    found = table.find(std::string(name_) + std::string(suffix));
  if (found == table.end()) found = table.find(name_);
  if (found == table.end()) refuse("unknown instruction");
  found->second(*this, out);
  if (!qualifiers_.empty()) refuse("unknown qualifier ." + std::string(qualifiers_.front()));
  if (out.execute == nullptr) refuse("no such form");
  out.text = std::uint32_t(function_.texts.size());
  function_.texts.emplace_back(text_);
  return out;
}

bool Decoder::take(std::string_view qualifier) {
  const auto before = qualifiers_.size();
  std::erase(qualifiers_, qualifier);
  return qualifiers_.size() != before;
}

Type Decoder::peek_type() const {
  for (const auto each : qualifiers_)
    if (const Type type = parse_type(each); type != Type::none) return type;
  return Type::none;
}

Type Decoder::take_type() {
  for (std::size_t i = 0; i < qualifiers_.size(); ++i)
    if (const Type type = parse_type(qualifiers_[i]); type != Type::none) {
      qualifiers_.erase(qualifiers_.begin() + std::ptrdiff_t(i));
      return type;
    }
  refuse("a type is missing");
}

std::string_view Decoder::take_rounding() {
  for (const std::string_view each : {"rn", "rz", "rm", "rp"})
    if (take(each)) return each;
  return {};
}

void Decoder::refuse(std::string_view why) const {
  throw Error("ptx: " + std::string(why) + ": " + std::string(text_) + " (in " + function_.name + ")");
}

std::string_view Decoder::operand(std::size_t i) const {
  if (i >= operands_.size()) refuse("an operand is missing");
  return operands_[i];
}

std::int32_t Decoder::source(std::size_t i, Type type) { return source(operand(i), type); }

std::int32_t Decoder::source(std::string_view text, Type type) {
  const int bytes = column_bytes(type);
  if (const auto value = parse_number(text))
    return names_.constant(type == Type::pred ? (*value != 0 ? ~0ull : 0) : *value, bytes).offset;
  const Column column = names_.column(text, bytes);
  if (column.offset < 0) refuse("unknown operand " + std::string(text));
  if (column.bytes != bytes) refuse("operand " + std::string(text) + " has another width");
  return column.offset;
}

std::int32_t Decoder::destination(std::size_t i, Type type) { return destination(operand(i), type); }

std::int32_t Decoder::destination(std::string_view text, Type type) {
  if (text == "_") return type == Type::pred ? -1 : names_.sink(column_bytes(type)).offset;
  if (!text.starts_with('%')) refuse("not a register: " + std::string(text));
  return source(text, type);
}

int Decoder::width(std::string_view text) {
  const Column column = names_.column(text, 8);
  if (column.offset < 0) refuse("unknown operand " + std::string(text));
  return column.bytes;
}

std::int32_t Decoder::predicate(std::size_t i, bool& is_negated) {
  std::string_view text = operand(i);
  is_negated = text.starts_with('!');
  if (is_negated) text.remove_prefix(1);
  return source(trim(text), Type::pred);
}

std::pair<std::string_view, std::string_view> Decoder::pair(std::size_t i) const {
  const std::string_view text = operand(i);
  const auto bar = text.find('|');
  if (bar == std::string_view::npos) return {text, "_"};
  return {trim(text.substr(0, bar)), trim(text.substr(bar + 1))};
}

std::vector<std::string_view> Decoder::elements(std::size_t i) const {
  const std::string_view text = operand(i);
  if (!text.starts_with('{')) return {text};
  return split(text.substr(1, text.size() - 2), ',');
}

void Decoder::address(std::size_t i, Instruction& out) {
  std::string_view text = operand(i);
  if (!text.starts_with('[') || !text.ends_with(']')) refuse("not an address: " + std::string(text));
  text = trim(text.substr(1, text.size() - 2));
  if (const auto plus = text.find('+'); plus != std::string_view::npos) {
    const auto offset = parse_number(trim(text.substr(plus + 1)));
    if (!offset) refuse("not an offset");
    out.immediate = std::int64_t(*offset);
    text = trim(text.substr(0, plus));
  }
  Column column;
  if (const auto value = parse_number(text)) column = names_.constant(*value, 8);
  else column = names_.column(text, 8);
  if (column.offset < 0 || column.bytes == 0) refuse("unknown address " + std::string(text));
  out.a = column.offset;
  out.is_wide = column.bytes == 8;
}

std::uint64_t Decoder::number(std::size_t i) const {
  const auto value = parse_number(operand(i));
  if (!value) refuse("a number is expected");
  return *value;
}

std::int32_t Decoder::list(const std::vector<std::int32_t>& offsets) {
  const auto start = std::int32_t(function_.lists.size());
  function_.lists.insert(function_.lists.end(), offsets.begin(), offsets.end());
  return start;
}

}  // namespace refrain::emulator::ptx
