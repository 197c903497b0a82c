// How two processes show each other that they hold one token without sending it: HMAC-SHA-256 (RFC 2104, FIPS 180-4) by OpenSSL.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace refrain::detail {

using Digest = std::array<std::uint8_t, 32>;

Digest hmac_sha256(std::string_view key, std::string_view bytes);

// Takes the same time wherever they differ.
bool is_equal_in_constant_time(const Digest& a, std::string_view b);

// From the system's source; throws RendezvousError where it has none.
std::string random_bytes(std::size_t count);
std::string hex(std::string_view bytes);

}  // namespace refrain::detail
