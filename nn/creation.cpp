#include <refrain/nn/creation.h>

#include <refrain/autograd/precision.h>
#include <refrain/core/check.h>

namespace refrain {

struct CreationScope::State {
  CreationOptions options;
  const ModulePath* base = ModulePath::root();  // names count from here
  std::map<std::string, std::uint32_t> counts;
};

CreationScope::State& CreationScope::state() {
  thread_local State state;
  return state;
}

CreationScope::CreationScope(const CreationOptions& options)
    : old_options_(state().options), old_base_(state().base), old_counts_(std::move(state().counts)) {
  state() = {options, thread_context().module, {}};
}

CreationScope::~CreationScope() { state() = {old_options_, old_base_, std::move(old_counts_)}; }

CreationOptions& creation_options() { return CreationScope::state().options; }

DType creation_dtype() { return creation_options().dtype.value_or(detail::autograd_state().parameter_dtype); }

std::string creation_name(std::string_view name) {
  const std::string& base = CreationScope::state().base->text;
  std::string full = concat(thread_context().module->text, '.', name);
  if (full.starts_with(base + ".")) full.erase(0, base.size() + 1);
  return full;
}

RandomKey creation_key(std::string_view name) {
  const std::string full = creation_name(name);
  const std::uint32_t count = CreationScope::state().counts[full]++;
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : full) hash = (hash ^ std::uint8_t(c)) * 0x100000001b3u;
  return {creation_options().seed, std::uint32_t(hash), std::uint32_t(hash >> 40), count & 0xffffu, RandomPurpose::init};
}

}  // namespace refrain
