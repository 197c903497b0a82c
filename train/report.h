// Where the memory went, as text: the peak by kind and by module.
#pragma once

#include <refrain/core/device.h>

#include <string>

namespace refrain {

// A plain table of the ledger's peak; its rows sum to the peak exactly. `reserved_bytes` is the arena's extent.
std::string peak_report(const Ledger& ledger, std::int64_t reserved_bytes);

// 1234567 → "1.2 MiB".
std::string bytes_text(std::int64_t bytes);

}  // namespace refrain
