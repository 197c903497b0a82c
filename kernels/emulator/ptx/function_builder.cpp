#include <refrain/kernels/emulator/ptx/control.h>
#include <refrain/kernels/emulator/ptx/function_builder.h>

#include <algorithm>
#include <utility>

namespace refrain::emulator::ptx {

namespace {

std::size_t rounded_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

struct SpecialRegister {
  std::string_view name;
  Preset::Kind kind;
};
constexpr SpecialRegister kSpecial[] = {{"%tid.x", Preset::tid_x},
                                        {"%tid.y", Preset::tid_y},
                                        {"%tid.z", Preset::tid_z},
                                        {"%ntid.x", Preset::ntid_x},
                                        {"%ntid.y", Preset::ntid_y},
                                        {"%ntid.z", Preset::ntid_z},
                                        {"%ctaid.x", Preset::ctaid_x},
                                        {"%ctaid.y", Preset::ctaid_y},
                                        {"%ctaid.z", Preset::ctaid_z},
                                        {"%nctaid.x", Preset::nctaid_x},
                                        {"%nctaid.y", Preset::nctaid_y},
                                        {"%nctaid.z", Preset::nctaid_z},
                                        {"%laneid", Preset::laneid},
                                        {"%warpid", Preset::warpid},
                                        {"%nwarpid", Preset::nwarpid},
                                        {"%lanemask_eq", Preset::lanemask_eq},
                                        {"%lanemask_lt", Preset::lanemask_lt},
                                        {"%lanemask_le", Preset::lanemask_le},
                                        {"%lanemask_gt", Preset::lanemask_gt},
                                        {"%lanemask_ge", Preset::lanemask_ge},
                                        {"%dynamic_smem_size", Preset::dynamic_smem_size},
                                        {"%total_smem_size", Preset::total_smem_size}};

}  // namespace

FunctionBuilder::FunctionBuilder(const Module::Parts& module, const FunctionSource& source) : module_(module), source_(source) {
  function_->name = source.name;
}

void FunctionBuilder::refuse(std::string_view why, std::string_view text) const {
  throw Error("ptx: " + std::string(why) + ": " + std::string(text) + " (in " + source_.name + ")");
}

std::unique_ptr<Function> FunctionBuilder::build() {
  scopes_.emplace_back();
  read_parameters();
  read_directives();
  read_body(source_.body);
  put_instruction("exit");  // never run off the end
  for (const auto& [name, id] : labels_)
    if (positions_[std::size_t(id)] < 0) refuse("unknown label", name);
  resolve_labels(*function_, positions_);
  function_->local_bytes = rounded_up(function_->local_bytes, 16);
  function_->shared_bytes = rounded_up(function_->shared_bytes, dynamic_align_);
  return std::move(function_);
}

// ---- columns

Column FunctionBuilder::allocate(int bytes) {
  const auto take = [&](std::size_t size) {
    const auto offset = std::int32_t(function_->register_bytes);
    function_->register_bytes += size;
    return offset;
  };
  if (bytes != 0) return {take(std::size_t(bytes) * 32), bytes};
  if (free_predicates_ == 0) next_predicate_ = take(128), free_predicates_ = 32;
  --free_predicates_;
  next_predicate_ += 4;
  return {next_predicate_ - 4, 0};
}

Column FunctionBuilder::preset(Preset::Kind kind, std::uint64_t value, int bytes) {
  const Column column = allocate(bytes);
  function_->presets.push_back({kind, column.offset, value});
  return column;
}

Column FunctionBuilder::constant(std::uint64_t bits, int bytes) {
  if (bytes != 8) bits &= 0xffffffff;
  const auto [found, is_new] = constants_.try_emplace({bits, bytes});
  if (is_new)
    found->second = preset(bytes == 8   ? Preset::constant64
                           : bytes == 4 ? Preset::constant32
                                        : Preset::constant_pred,
                           bits, bytes);
  return found->second;
}

Column FunctionBuilder::sink(int bytes) { return allocate(bytes); }

Column FunctionBuilder::column(std::string_view name, int bytes) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->find(name); found != scope->end()) return found->second;
  if (const auto found = known_.find(std::string(name) + (bytes == 8 ? "/8" : "/4")); found != known_.end()) return found->second;
  if (name == "WARP_SZ") return constant(32, bytes);
  if (name.starts_with('%')) return special(name);
  if (const auto found = module_.variables.find(name); found != module_.variables.end()) return address_of(found->second, bytes);
  return {};
}

Column FunctionBuilder::special(std::string_view name) {
  if (const auto found = known_.find(name); found != known_.end()) return found->second;
  for (const SpecialRegister& each : kSpecial)
    if (each.name == name) return known_[std::string(name)] = preset(each.kind, 0, 4);
  return {};
}

// Shared variables of the file get a place in every function that names them.
Column FunctionBuilder::address_of(const Variable& variable, int bytes) {
  if (variable.storage) return constant(reinterpret_cast<std::uint64_t>(variable.storage.get()), 8);
  const Declaration& declaration = variable.declaration;
  if (declaration.space != "shared") refuse("unknown variable", declaration.what.name);
  const bool is_dynamic = declaration.what.is_array && declaration.what.count == 0;
  const std::string key = declaration.what.name + (bytes == 8 ? "/8" : "/4");
  if (is_dynamic) {
    dynamic_align_ = std::max(dynamic_align_, declaration.align);
    return known_[key] = preset(bytes == 8 ? Preset::dynamic_shared : Preset::dynamic_shared32, 0, bytes);
  }
  const std::size_t offset = rounded_up(function_->shared_bytes, declaration.align);
  function_->shared_bytes = offset + declaration.bytes();
  known_[declaration.what.name + "/8"] = constant(offset, 8);
  known_[declaration.what.name + "/4"] = constant(offset, 4);
  return known_[key];
}

// ---- heads

void FunctionBuilder::read_parameters() {
  for (const auto text : split(source_.parameters, ',')) {
    const Declaration declaration = parse_declaration(text);
    const std::size_t offset = rounded_up(function_->parameter_bytes, declaration.align);
    function_->parameters.push_back({offset, declaration.bytes()});
    function_->parameter_bytes = offset + declaration.bytes();
    scopes_.back()[declaration.what.name] = preset(Preset::param_address, offset, 8);
  }
}

void FunctionBuilder::read_directives() {
  std::string spaced;
  for (const char c : source_.directives) spaced += c == ',' ? ' ' : c;
  const auto parts = words(spaced);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == ".maxntid" || parts[i] == ".reqntid") {
      function_->max_threads = 1;
      for (; i + 1 < parts.size() && !parts[i + 1].starts_with('.'); ++i)
        function_->max_threads *= unsigned(parse_number(parts[i + 1]).value());
    } else if (parts[i] == ".minnctapersm" || parts[i] == ".maxnreg") {
      ++i;
    } else if (parts[i] != ".noreturn") {
      refuse("unknown directive", parts[i]);
    }
  }
}

// ---- bodies

std::int64_t FunctionBuilder::label(std::string_view name) {
  const auto [found, is_new] = labels_.try_emplace(prefix_ + std::string(name), std::int64_t(positions_.size()));
  if (is_new) positions_.push_back(-1);
  return found->second;
}

std::vector<std::string_view> FunctionBuilder::branch_targets(std::string_view name) {
  const auto found = tables_.find(prefix_ + std::string(name));
  if (found == tables_.end()) refuse("unknown table of targets", name);
  return found->second;
}

void FunctionBuilder::read_body(std::string_view body) {
  std::string_view label_before;
  for (const Piece& piece : cut_body(body)) {
    if (piece.kind == Piece::open) scopes_.emplace_back();
    if (piece.kind == Piece::close) scopes_.pop_back();
    if (piece.kind == Piece::label) positions_[std::size_t(label(piece.text))] = std::int64_t(function_->code.size());
    if (piece.kind == Piece::statement) read_statement(piece.text, label_before);
    label_before = piece.kind == Piece::label ? piece.text : std::string_view{};
  }
}

void FunctionBuilder::read_statement(std::string_view text, std::string_view label_before) {
  const std::string_view first = words(text).front();
  if (first == ".reg") return declare_registers(text);
  if (first == ".local" || first == ".shared" || first == ".param") return declare_variable(text);
  if (first == ".pragma" || first == ".loc") return;
  if (first == ".branchtargets") {
    tables_[prefix_ + std::string(label_before)] = split(trim(text.substr(first.size())), ',');
    return;
  }
  if (first.starts_with('.')) refuse("unknown directive", text);
  if (first == "call" || first.starts_with("call.")) return put_call(text);
  put_instruction(text);
}

void FunctionBuilder::declare_registers(std::string_view text) {
  const auto parts = words(text);
  const Type type = parse_type(parts.at(1).substr(1));
  const int bytes = type == Type::pred ? 0 : size_of(type) > 4 ? 8 : 4;
  if (type == Type::none || size_of(type) > 8) refuse("registers of this type", text);
  const auto names_start = std::size_t(parts[1].data() - text.data()) + parts[1].size();
  for (const std::string_view name : split(text.substr(names_start), ',')) {
    const auto bracket = name.find('<');
    if (bracket == std::string_view::npos) {
      scopes_.back()[std::string(name)] = allocate(bytes);
      continue;
    }
    const auto count = parse_number(name.substr(bracket + 1, name.find('>') - bracket - 1)).value();
    for (std::uint64_t k = 0; k < count; ++k)
      scopes_.back()[std::string(name.substr(0, bracket)) + std::to_string(k)] = allocate(bytes);
  }
}

// .param inside a body is what a call passes: as private as .local.
void FunctionBuilder::declare_variable(std::string_view text) {
  const Declaration declaration = parse_declaration(text);
  std::size_t& top = declaration.space == "shared" ? function_->shared_bytes : function_->local_bytes;
  const std::size_t offset = rounded_up(top, std::max(declaration.align, std::size_t(declaration.space == "param" ? 16 : 1)));
  top = offset + declaration.bytes();
  const std::string& name = declaration.what.name;
  if (declaration.space != "shared") {
    scopes_.back()[name] = preset(Preset::local_address, offset, 8);
    return;
  }
  // Its width depends on who asks: known like the file's.
  known_[name + "/8"] = constant(offset, 8);
  known_[name + "/4"] = constant(offset, 4);
}

// call (results), function, (arguments)
void FunctionBuilder::put_call(std::string_view text) {
  const auto start = text.find_first_of(" \t\n");
  std::vector<std::string_view> parts = split(text.substr(start), ',');
  const auto is_list = [](std::string_view part) { return part.starts_with('('); };
  const auto inside = [](std::string_view part) { return split(part.substr(1, part.size() - 2), ','); };
  std::vector<std::string_view> results, arguments;
  if (!parts.empty() && is_list(parts.front())) results = inside(parts.front()), parts.erase(parts.begin());
  if (parts.size() > 1 && is_list(parts.back())) arguments = inside(parts.back()), parts.pop_back();
  if (parts.size() != 1) refuse("a call of this form", text);
  const auto found = module_.functions.find(parts.front());
  if (found == module_.functions.end()) refuse("call of an unknown function", text);
  if (depth_ >= 16) refuse("calls this deep", text);
  const FunctionSource& callee = found->second;
  Scope formals;
  const auto bind = [&](std::string_view declarations, const std::vector<std::string_view>& actual) {
    const auto each = split(declarations, ',');
    if (each.size() != actual.size()) refuse("a call with another number of arguments", text);
    for (std::size_t k = 0; k < each.size(); ++k) formals[parse_declaration(each[k]).what.name] = column(actual[k], 8);
  };
  bind(callee.results, results);
  bind(callee.parameters, arguments);
  const std::string outer = std::exchange(prefix_, callee.name + "#" + std::to_string(num_calls_++) + ":");
  std::vector<Scope> outside = std::exchange(scopes_, {});
  scopes_.push_back(std::move(formals));
  ++depth_;
  read_body(callee.body);
  positions_[std::size_t(label("$end"))] = std::int64_t(function_->code.size());
  --depth_;
  scopes_ = std::move(outside);
  prefix_ = outer;
}

void FunctionBuilder::put_instruction(std::string_view text) {
  const auto last = words(text).back();
  std::string leaving;  // a device function's end is a branch behind it
  if (depth_ > 0 && (last == "ret" || last == "ret.uni"))
    text = leaving = std::string(text.substr(0, text.size() - last.size())) + "bra $end";
  function_->code.push_back(Decoder(text, *this, *function_).decode());
}

}  // namespace refrain::emulator::ptx
