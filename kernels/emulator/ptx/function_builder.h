// One entry's text made into a Function: registers, variables, labels. Device functions are put in place of their calls.
#pragma once

#include <refrain/kernels/emulator/ptx/decode.h>
#include <refrain/kernels/emulator/ptx/syntax.h>

#include <map>

namespace refrain::emulator::ptx {

struct FunctionSource {
  std::string name;
  std::string_view results, parameters, directives, body;
  bool is_entry = false;
};

struct Variable {
  Declaration declaration;
  std::unique_ptr<std::byte[]> storage;  // of .global and .const
};

struct Module::Parts {
  std::string text;
  std::map<std::string, FunctionSource, std::less<>> functions;
  std::map<std::string, Variable, std::less<>> variables;  // of the whole file
  std::map<std::string, std::unique_ptr<Function>, std::less<>> decoded;
};

class FunctionBuilder final : public Names {
 public:
  FunctionBuilder(const Module::Parts& module, const FunctionSource& source);
  std::unique_ptr<Function> build();

  Column column(std::string_view name, int bytes) override;
  Column constant(std::uint64_t bits, int bytes) override;
  Column sink(int bytes) override;
  std::int64_t label(std::string_view name) override;
  std::vector<std::string_view> branch_targets(std::string_view name) override;

 private:
  using Scope = std::map<std::string, Column, std::less<>>;
  Column allocate(int bytes);
  Column preset(Preset::Kind kind, std::uint64_t value, int bytes);
  Column special(std::string_view name);
  Column address_of(const Variable& variable, int bytes);
  void read_parameters();
  void read_directives();
  void read_body(std::string_view body);
  void read_statement(std::string_view text, std::string_view label);
  void declare_registers(std::string_view text);
  void declare_variable(std::string_view text);
  void put_call(std::string_view text);
  void put_instruction(std::string_view text);
  [[noreturn]] void refuse(std::string_view why, std::string_view text) const;

  const Module::Parts& module_;
  const FunctionSource& source_;
  std::unique_ptr<Function> function_ = std::make_unique<Function>();
  std::vector<Scope> scopes_;
  Scope known_;                                        // special registers and addresses of the file's variables
  std::map<std::pair<std::uint64_t, int>, Column> constants_;
  std::int32_t free_predicates_ = 0, next_predicate_ = 0;
  std::map<std::string, std::int64_t, std::less<>> labels_;
  std::vector<std::int64_t> positions_;                // of labels; -1 until they are met
  std::map<std::string, std::vector<std::string_view>, std::less<>> tables_;
  std::string prefix_;                                 // of labels, different in each copy of a device function
  int num_calls_ = 0, depth_ = 0;                      // of device functions put in place; how many the current one is in
  std::size_t dynamic_align_ = 16;
};

}  // namespace refrain::emulator::ptx
