// The text of PTX, cut into statements. Knows brackets and comments, no instruction.
#pragma once

#include <refrain/kernels/emulator/ptx/module.h>

#include <optional>

namespace refrain::emulator::ptx {

std::string_view trim(std::string_view text);
// Cut at `separator` outside of (), [] and {}; parts are trimmed.
std::vector<std::string_view> split(std::string_view text, char separator);
std::vector<std::string_view> words(std::string_view text);
std::string without_comments(std::string_view text);

// Numbers as PTX writes them: 12, -3, 0x1F, 12U, 0f3F800000, 0d3FF0000000000000. Nothing when it is none.
std::optional<std::uint64_t> parse_number(std::string_view text);

// "name[12]" or "name": a variable's name and number of elements (1 without brackets, 0 for "[]").
struct Declarator {
  std::string name;
  std::size_t count = 1;
  bool is_array = false;
};
Declarator parse_declarator(std::string_view text);

// `.global .align 8 .b32 name[4] = {…}`: space, alignment, element type, name, initialiser.
struct Declaration {
  std::string space;
  std::size_t align = 0;
  Type type = Type::none;
  Declarator what;
  std::string initialiser;
  std::size_t bytes() const { return size_of(type) * what.count; }
};
Declaration parse_declaration(std::string_view text);

Type parse_type(std::string_view text);  // "f32"; none when it is no type

// What stands at module level: `head { body }` of a function, or a declaration that ended in ';'.
struct TopLevel {
  std::string_view head, body;
  bool has_body = false;
};
std::vector<TopLevel> cut_module(std::string_view text);

// What stands in a body: `{`, `}`, `label:` or a statement without its ';'.
struct Piece {
  enum Kind { open, close, label, statement } kind;
  std::string_view text;
};
std::vector<Piece> cut_body(std::string_view body);

}  // namespace refrain::emulator::ptx
