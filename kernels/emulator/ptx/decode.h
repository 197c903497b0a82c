// From an instruction's text to its handler. Each group of instructions adds its builders to one table; a builder takes the
// qualifiers it knows, and any that is left is an error: nothing of an instruction is ignored in silence.
#pragma once

#include <refrain/kernels/emulator/ptx/module.h>

#include <functional>
#include <unordered_map>

namespace refrain::emulator::ptx {

// Where an operand's column lies, and how wide it is: 0 bytes for a predicate, else 4 or 8.
struct Column {
  std::int32_t offset = -1;
  int bytes = 0;
};

// What a decoder asks of the function it decodes for.
class Names {
 public:
  virtual ~Names() = default;
  // A register, a special register or, `bytes` wide, a variable's address; offset -1 when there is none of that name.
  virtual Column column(std::string_view name, int bytes) = 0;
  virtual Column constant(std::uint64_t bits, int bytes) = 0;
  virtual Column sink(int bytes) = 0;  // for a result that nobody wants
  virtual std::int64_t label(std::string_view name) = 0;  // resolved when the function is complete
  virtual std::vector<std::string_view> branch_targets(std::string_view name) = 0;
};

class Decoder {
 public:
  Decoder(std::string_view text, Names& names, Function& function);
  Instruction decode();

  // Qualifiers.
  bool take(std::string_view qualifier);  // whether it is there
  template <class... Each>
  bool take_any(Each... each) {  // all that are there
    bool found = false;
    ((found |= take(each)), ...);
    return found;
  }
  Type peek_type() const;  // none if there is none
  Type take_type();                       // the next qualifier that is a type; an error if there is none
  bool has_type() const { return peek_type() != Type::none; }
  std::string_view take_rounding();       // "rn", "rz", "rm", "rp" or empty
  [[noreturn]] void refuse(std::string_view why) const;

  // Operands.
  std::size_t num_operands() const { return operands_.size(); }
  std::string_view operand(std::size_t i) const;
  bool is_sink(std::size_t i) const { return operand(i) == "_"; }
  std::int32_t source(std::size_t i, Type type);
  std::int32_t source(std::string_view text, Type type);
  std::int32_t destination(std::size_t i, Type type);    // -1 for the predicate "_"
  std::int32_t destination(std::string_view text, Type type);
  int width(std::string_view text);                      // bytes of a register's column
  std::int32_t predicate(std::size_t i, bool& is_negated);
  std::pair<std::string_view, std::string_view> pair(std::size_t i) const;  // "d|p"
  std::vector<std::string_view> elements(std::size_t i) const;              // of {…}, or the operand alone
  void address(std::size_t i, Instruction& out);         // a, immediate and is_wide from [base+offset]
  std::uint64_t number(std::size_t i) const;             // an operand that must be one
  std::int32_t list(const std::vector<std::int32_t>& offsets);
  Names& names() { return names_; }

 private:
  std::string_view text_, name_;
  std::vector<std::string_view> qualifiers_, operands_;
  Names& names_;
  Function& function_;
};

using Builder = void (*)(Decoder&, Instruction&);
using Table = std::unordered_map<std::string_view, Builder>;

// One a group, each in the file of that name. A key is an instruction's name; "add.f" is add of f32 and f64, "add.h" of 16-bit
// floats, where they differ from the integers' "add".
void add_integers(Table&);
void add_bits(Table&);
void add_floats(Table&);
void add_halves(Table&);
void add_comparisons(Table&);
void add_conversions(Table&);
void add_moves(Table&);
void add_memory(Table&);
void add_atomics(Table&);
void add_control(Table&);
void add_warp(Table&);
void add_matrix(Table&);
void add_async(Table&);
const Table& instruction_table();

}  // namespace refrain::emulator::ptx
