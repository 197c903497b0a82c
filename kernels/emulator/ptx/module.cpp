#include <refrain/kernels/emulator/ptx/function_builder.h>
#include <refrain/kernels/emulator/ptx/module.h>

#include <cstring>

namespace refrain::emulator::ptx {

namespace {

// `.visible .entry name(parameters) .maxntid 256` or `.func (results) name(parameters)`.
FunctionSource read_head(std::string_view head, std::string_view body) {
  FunctionSource source;
  source.body = body;
  auto at = head.find(".entry");
  source.is_entry = at != std::string_view::npos;
  at = source.is_entry ? at + 6 : head.find(".func") + 5;
  std::string_view rest = trim(head.substr(at));
  const auto take_list = [&] {
    if (!rest.starts_with('(')) return std::string_view{};
    const auto end = rest.find(')');
    const std::string_view inside = rest.substr(1, end - 1);
    rest = trim(rest.substr(end + 1));
    return inside;
  };
  source.results = take_list();
  const auto name_end = std::min(rest.find_first_of("( \t\r\n"), rest.size());
  source.name = rest.substr(0, name_end);
  rest = trim(rest.substr(name_end));
  source.parameters = take_list();
  source.directives = rest;
  return source;
}

Variable read_variable(std::string_view text) {
  Variable variable{parse_declaration(text), nullptr};
  const Declaration& declaration = variable.declaration;
  if (declaration.space == "shared") return variable;
  if (declaration.space != "global" && declaration.space != "const")
    throw Error("ptx: unknown declaration: " + std::string(text));
  const std::size_t bytes = declaration.bytes(), size = size_of(declaration.type);
  variable.storage.reset(new std::byte[bytes + 16]);  // aligned as new aligns: to 16 bytes
  if (declaration.align > 16) throw Error("ptx: a variable aligned to more than 16 bytes: " + std::string(text));
  std::memset(variable.storage.get(), 0, bytes);
  std::string_view values = declaration.initialiser;
  if (values.starts_with('{')) values = values.substr(1, values.size() - 2);
  std::size_t k = 0;
  for (const auto each : split(values, ',')) {
    const auto value = parse_number(each);
    if (!value || (k + 1) * size > bytes) throw Error("ptx: unknown initialiser: " + std::string(text));
    std::memcpy(variable.storage.get() + k++ * size, &*value, size);
  }
  return variable;
}

}  // namespace

Module::Module(std::string text) : parts_(std::make_unique<Parts>()) {
  parts_->text = without_comments(text);
  for (const TopLevel& each : cut_module(parts_->text)) {
    const bool is_function =
        each.head.find(".entry") != std::string_view::npos || each.head.find(".func") != std::string_view::npos;
    if (is_function) {
      if (!each.has_body) continue;  // a declaration
      FunctionSource source = read_head(each.head, each.body);
      std::string name = source.name;
      parts_->functions.insert_or_assign(std::move(name), std::move(source));
    } else if (!each.head.empty()) {
      Variable variable = read_variable(each.head);
      std::string name = variable.declaration.what.name;
      parts_->variables.insert_or_assign(std::move(name), std::move(variable));
    }
  }
}

Module::~Module() = default;

std::vector<std::string> Module::entries() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : parts_->functions)
    if (source.is_entry) names.push_back(name);
  return names;
}

bool Module::has(std::string_view entry) const {
  const auto found = parts_->functions.find(entry);
  return found != parts_->functions.end() && found->second.is_entry;
}

const Function& Module::function(std::string_view entry) {
  if (!has(entry)) throw Error("ptx: no entry " + std::string(entry));
  std::unique_ptr<Function>& decoded = parts_->decoded[std::string(entry)];
  if (!decoded) decoded = FunctionBuilder(*parts_, parts_->functions.find(entry)->second).build();
  return *decoded;
}

std::byte* Module::variable(std::string_view name) const {
  const auto found = parts_->variables.find(name);
  return found == parts_->variables.end() ? nullptr : found->second.storage.get();
}

}  // namespace refrain::emulator::ptx
