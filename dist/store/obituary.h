// What a launcher tells rank 0's store when one of its processes ends, whether that one had come to the group or not.
#pragma once

#include <refrain/dist/join_group.h>

#include <string>

namespace refrain::detail {

// Tries for half a second; nothing happens where the store is gone. `place` says whose store, and the rank that ended.
void send_obituary(const Place& place, const std::string& host, const std::string& why) noexcept;

std::string obituary_proof_text(std::string_view server_nonce, std::string_view body);

}  // namespace refrain::detail
