#include <refrain/dist/call_header.h>

#include <algorithm>
#include <cstring>

namespace refrain::detail {

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ std::uint8_t(c)) * 1099511628211u;
  return hash;
}

std::string signature(const Call& call) {
  std::string text = call.text();
  for (const std::int64_t count : call.counts) text += concat(",", count);
  return text;
}

CallHeader header_of(const Call& call, std::uint64_t number, std::string_view name) {
  CallHeader own{.hash = hash_of(signature(call)), .number = number, .text = {}};
  std::memcpy(own.text.data(), name.data(), std::min(name.size(), own.text.size() - 1));
  return own;
}

std::string difference_of(std::span<const CallHeader> headers, std::span<const int> ranks, std::int64_t step) {
  for (std::size_t r = 1; r < headers.size(); ++r) {
    const CallHeader &first = headers[0], &other = headers[r];
    if (first.hash == other.hash && first.number == other.number) continue;
    const auto named = [](int rank, const CallHeader& of) {
      return concat("rank ", rank, "'s call ", of.number, " is ", std::string(of.text.data(), strnlen(of.text.data(), of.text.size())));
    };
    const bool is_same_text = first.text == other.text && first.number == other.number;
    return concat("the ranks' calls differ: ", named(ranks[0], first), ", ", named(ranks[r], other), is_same_text ? " in other pieces" : "",
                  ", ", step < 0 ? "before the first step" : concat("step ", step));
  }
  return {};
}

}  // namespace refrain::detail
