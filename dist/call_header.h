// What ranks tell each other of a call before they begin it, where calls are compared.
#pragma once

#include <refrain/dist/call.h>

#include <array>
#include <string>
#include <string_view>

namespace refrain::detail {

std::uint64_t hash_of(std::string_view text);  // FNV-1a
// What must be the same on all ranks.
std::string signature(const Call& call);

struct CallHeader {
  std::uint64_t hash, number;
  std::array<char, 240> text;
};
// `name` is the call as messages have it, `number` its place among its group's.
CallHeader header_of(const Call& call, std::uint64_t number, std::string_view name);

// "the ranks' calls differ: …", or nothing where they do not. `headers` are those of `ranks`.
std::string difference_of(std::span<const CallHeader> headers, std::span<const int> ranks, std::int64_t step);

}  // namespace refrain::detail
