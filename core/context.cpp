#include <refrain/core/check.h>
#include <refrain/core/context.h>

#include <deque>
#include <map>
#include <mutex>

namespace refrain {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::replay: return "replay";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "?";
}

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameter: return "parameter";
    case MemoryKind::gradient: return "gradient";
    case MemoryKind::optimizer_state: return "optimizer_state";
    case MemoryKind::saved: return "saved";
    case MemoryKind::temporary: return "temporary";
    case MemoryKind::workspace: return "workspace";
    case MemoryKind::input: return "input";
    case MemoryKind::communication: return "communication";
    case MemoryKind::staging: return "staging";
  }
  return "?";
}

namespace {

// Interned paths never die, so a ledger's receipt can name a module long after it is gone.
struct PathTable {
  std::mutex mutex;
  std::deque<ModulePath> paths{ModulePath{}};
  std::map<std::pair<const ModulePath*, std::string>, const ModulePath*, std::less<>> children;
};

PathTable& path_table() {
  static PathTable* table = new PathTable;  // outlives every static destructor
  return *table;
}

}  // namespace

const ModulePath* ModulePath::root() {
  static const ModulePath* path = &path_table().paths.front();
  return path;
}

const ModulePath* ModulePath::child(const ModulePath* parent, std::string_view name) {
  if (const std::size_t dot = name.find('.'); dot != std::string_view::npos) return child(child(parent, name.substr(0, dot)), name.substr(dot + 1));
  PathTable& table = path_table();
  std::lock_guard lock(table.mutex);
  std::pair<const ModulePath*, std::string> key{parent, std::string(name)};
  if (auto found = table.children.find(key); found != table.children.end()) return found->second;
  std::string text = parent->text.empty() ? key.second : parent->text + "." + key.second;
  table.paths.push_back(ModulePath{std::move(text), std::uint32_t(table.paths.size())});
  return table.children.emplace(std::move(key), &table.paths.back()).first->second;
}

const ModulePath* ModulePath::by_id(std::uint32_t id) {
  PathTable& table = path_table();
  std::lock_guard lock(table.mutex);
  invariant(id < table.paths.size(), "no module path ", id);
  return &table.paths[id];
}

ThreadContext& thread_context() {
  thread_local ThreadContext context;
  return context;
}

}  // namespace refrain
