// What the ranks of a link send to whom, and in which order parts are added: work on its stream.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/nccl/link.h>

namespace refrain::detail {

// Puts everything but sends and receives on the link's stream. The tensors must stay as they are until it has run.
void give_collective(NcclLink& link, int rank, int world_size, const Call& call, const NcclLink::Patience& patience);

// A message of every rank to every other, between host memory: rank r's `bytes` at headers().device + r * bytes.
void exchange_headers(NcclLink& link, int rank, int world_size, std::int64_t bytes, const NcclLink::Patience& patience);

}  // namespace refrain::detail
