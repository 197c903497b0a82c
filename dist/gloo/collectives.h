// What the ranks send to whom, and in which order parts are added: plain functions over a mesh.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/gloo/mesh.h>

#include <span>

namespace refrain::detail {

// Where a rank stands in its group, and the slot all messages of this call bear.
class Station {
 public:
  // `ranks` are the mesh's of the group's.
  Station(Mesh& mesh, std::span<const int> ranks, int own, std::uint64_t call_slot)
      : rank(own), world_size(int(ranks.size())), slot(call_slot), mesh_(mesh), ranks_(ranks) {}

  const int rank, world_size;
  const std::uint64_t slot;

  Transfer send(int to, std::uint64_t in_slot, const void* bytes, std::size_t count) const {
    return mesh_.send(ranks_[std::size_t(to)], in_slot, bytes, count);
  }
  Transfer receive(int from, std::uint64_t in_slot, void* bytes, std::size_t count) const {
    return mesh_.receive(ranks_[std::size_t(from)], in_slot, bytes, count);
  }

 private:
  Mesh& mesh_;
  std::span<const int> ranks_;
};

// Does everything but send and receive. Throws TransferError; the tensors' bytes are then undefined.
void run_collective(const Station& at, const Call& call);

}  // namespace refrain::detail
