// What belongs to the calling thread: which module, op and phase is running, and what kind of memory it asks for.
// Scopes set a field and put the old value back; there is no global state behind them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace refrain {

enum class Phase : std::uint8_t { forward, replay, backward, update };
inline constexpr int kNumPhases = 4;
std::string_view name_of(Phase phase);

enum class MemoryKind : std::uint8_t {
  parameter, gradient, optimizer_state, saved, temporary, workspace, input, communication, staging
};
inline constexpr int kNumMemoryKinds = 9;
std::string_view name_of(MemoryKind kind);

// One interned module path such as `blocks.3.attention.qkv`; equal paths are one object, so pointers compare.
struct ModulePath {
  std::string text;       // "" for the root
  std::uint32_t id = 0;   // dense, 0 for the root

  // The path `parent.name`, where name may have dots of its own; thread-safe, lives for the whole process.
  static const ModulePath* child(const ModulePath* parent, std::string_view name);
  static const ModulePath* root();
  static const ModulePath* by_id(std::uint32_t id);
};

struct ThreadContext {
  const ModulePath* module = ModulePath::root();
  std::string_view op;                          // name of the running op; static storage
  Phase phase = Phase::forward;
  MemoryKind kind = MemoryKind::temporary;      // of allocations made now
  bool skip_kernels = false;                    // launch() validates and does nothing more (values already there)
  bool inside_op = false;                       // tensors read now are an op's declared inputs
};

ThreadContext& thread_context();

// Sets one field of the thread's context for the scope's life.
template <class T>
class ContextScope {
 public:
  ContextScope(T ThreadContext::*field, T value) : field_(field), old_((thread_context().*field)) { (thread_context().*field) = value; }
  ~ContextScope() { (thread_context().*field_) = old_; }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  T ThreadContext::*field_;
  T old_;
};

// Allocations in this scope are of this kind.
class KindScope : public ContextScope<MemoryKind> {
 public:
  explicit KindScope(MemoryKind kind) : ContextScope(&ThreadContext::kind, kind) {}
};

class PhaseScope : public ContextScope<Phase> {
 public:
  explicit PhaseScope(Phase phase) : ContextScope(&ThreadContext::phase, phase) {}
};

// Work in this scope belongs to the module `name` inside the current one.
class ModuleScope : public ContextScope<const ModulePath*> {
 public:
  explicit ModuleScope(std::string_view name)
      : ContextScope(&ThreadContext::module, name.empty() ? thread_context().module : ModulePath::child(thread_context().module, name)) {}
  explicit ModuleScope(const ModulePath* path) : ContextScope(&ThreadContext::module, path) {}
};

// True while a checkpoint region repeats its forward pass: effects (running statistics, logs) must not happen again.
inline bool is_replaying() { return thread_context().phase == Phase::replay; }

}  // namespace refrain
