// What the ranks of a link send to whom, and in which order parts are added: work on its stream.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/nccl/link.h>

#include <vector>

namespace refrain::detail {

// A message of every rank to every other, in host memory: rank r's `bytes` lie at `device` + r * bytes, as the device sees it.
std::vector<NcclMessage> to_everybody(int rank, int world_size, std::byte* device, std::int64_t bytes);

// Puts everything but sends and receives on the link's stream, `headers` with what is sent first. The tensors must stay as they
// are until it has run.
void give_collective(NcclLink& link, int rank, int world_size, const Call& call, std::vector<NcclMessage> headers,
                     const NcclLink::Patience& patience);

}  // namespace refrain::detail
