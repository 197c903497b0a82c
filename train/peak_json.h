// The peak as JSON, in the same words for a run's summary.json and for a plan.
#pragma once

#include <refrain/core/memory/ledger.h>

#include <nlohmann/json.hpp>

namespace refrain {

// Adds peak_bytes (total and by kind), highest_bytes_of_kind and reserved_peak_bytes.
inline void add_peak(nlohmann::ordered_json& json, const Ledger& ledger, std::int64_t reserved_bytes) {
  json["peak_bytes"]["total"] = ledger.peak_bytes();
  json["highest_bytes_of_kind"] = nlohmann::ordered_json::object();
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    const std::string name(name_of(MemoryKind(kind)));
    json["peak_bytes"][name] = ledger.kinds_at_peak()[std::size_t(kind)];
    json["highest_bytes_of_kind"][name] = ledger.peak_per_kind()[std::size_t(kind)];
  }
  json["reserved_peak_bytes"] = reserved_bytes;
}

}  // namespace refrain
