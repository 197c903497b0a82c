// What the ranks send to whom, and in which order parts are added: plain functions over a mesh.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/gloo/mesh.h>

namespace refrain::detail {

// Where a rank stands, and the slot all messages of this call bear.
struct Station {
  Mesh& mesh;
  int rank, world_size;
  std::uint64_t slot;
};

// Does everything but send and receive. Throws TransferError; the tensors' bytes are then undefined.
void run_collective(const Station& at, const Call& call);

}  // namespace refrain::detail
