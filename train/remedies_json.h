// A receipt's groups and remedies as JSON, in the same words for a plan and for memory.json.
#pragma once

#include <refrain/train/remedies.h>

#include <nlohmann/json.hpp>

namespace refrain {

// A list of groups, each with the remedies that lower its bytes at the peak.
nlohmann::ordered_json groups_json(const Receipt& receipt, const Remedies& remedies);
// Several remedies at once, of the whole peak.
nlohmann::ordered_json combined_json(const Remedies& remedies);
// Peak, moment, every tensor, groups and combinations: one object.
nlohmann::ordered_json receipt_json(const Receipt& receipt, const Remedies& remedies);

}  // namespace refrain
