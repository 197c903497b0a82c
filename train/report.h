// Where the memory went, as text: the peak by kind and by module.
#pragma once

#include <refrain/core/device.h>

#include <string>

namespace refrain {

// A plain table of the ledger's peak; its rows sum to the peak exactly. `reserved_bytes` is the arena's extent.
std::string peak_report(const Ledger& ledger, std::int64_t reserved_bytes);

// What the process holds besides the arena: code, libraries and their buffers, thread stacks, samples. At the start of a run,
// and at the process's peak minus what the arena has reserved by the end; the latter below 0, or `peak` missing, is left out.
std::string outside_arena_report(std::int64_t start_bytes, std::int64_t peak_bytes = -1);

// The same for a CUDA device: host memory that is pinned for copies, which is part of the above, and what is in use on the device
// beside the arena, by other processes as well.
std::string outside_arena_on_device_report(std::int64_t pinned_bytes, std::int64_t device_bytes);

// 1234567 → "1.2 MiB".
std::string bytes_text(std::int64_t bytes);

}  // namespace refrain
