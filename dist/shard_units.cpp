#include <refrain/dist/shard_units.h>

#include <algorithm>
#include <map>

namespace refrain::detail {

bool ShardUnit::is_of(std::uint32_t stage) const { return std::find(stages.begin(), stages.end(), stage) != stages.end(); }

ShardUnits units_of(std::span<const std::vector<NamedTensor>> stages) {
  ShardUnits result{.parameters = {}, .units = {}, .num_stages = std::uint32_t(stages.size())};
  std::map<const Storage*, std::size_t> index_of;
  std::vector<std::vector<std::uint32_t>> readers;  // of each parameter
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    for (const NamedTensor& entry : stages[stage]) {
      const Storage* storage = entry.tensor.storage().get();
      const bool owns = storage != nullptr && entry.tensor.offset() == 0 && entry.tensor.is_contiguous() && storage->bytes() == entry.tensor.bytes();
      check(owns, "sharded: parameter '", entry.name, "' must be all of its storage, contiguous");
      const auto [found, is_new] = index_of.emplace(storage, result.parameters.size());
      if (is_new) {
        result.parameters.push_back(entry);
        readers.emplace_back();
      }
      if (readers[found->second].empty() || readers[found->second].back() != stage) readers[found->second].push_back(stage);
    }
  }
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const DType dtype = result.parameters[i].tensor.dtype();
    const auto same = std::find_if(result.units.begin(), result.units.end(),
                                   [&](const ShardUnit& unit) { return unit.stages == readers[i] && unit.dtype == dtype; });
    if (same != result.units.end()) same->parameters.push_back(i);
    else result.units.push_back({readers[i], {i}, dtype});
  }
  return result;
}

}  // namespace refrain::detail
