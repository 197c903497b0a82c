// How a process finds its group: from what launchers set in the environment to a ProcessGroup.
#pragma once

#include <refrain/dist/process_group.h>

#include <chrono>
#include <memory>
#include <string>

namespace refrain {

// Which rank this process is, and where rank 0's store answers.
struct Place {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // among the ranks of this machine
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string token = {};      // what all ranks hold and no stranger does; may be empty on a loopback address only
  int store_fd = -1;           // rank 0: a socket that listens already, inherited from the launcher
  bool is_store_open = false;  // somebody listened before any rank was started: if nobody does, rank 0 is gone
};

// From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, or Open MPI's or a Slurm step's own; MASTER_ADDR, MASTER_PORT,
// REFRAIN_TOKEN. A world of one where none of them is set. Throws RendezvousError naming the variable.
Place place_from_environment();

struct GroupOptions {
  // A process that has not been heard of for so long is lost. Kept by a thread of its own, beside all work.
  std::chrono::milliseconds heartbeat_timeout{8000};
  // An operation that takes longer ends the group: some rank is stuck in its own code.
  std::chrono::milliseconds collective_timeout{600'000};
  // All ranks must have come within it.
  std::chrono::milliseconds rendezvous_timeout{60'000};
  // Compare every call across ranks, not only the first step's.
  bool check_every_call = false;

  // REFRAIN_HEARTBEAT_TIMEOUT, REFRAIN_COLLECTIVE_TIMEOUT, REFRAIN_RENDEZVOUS_TIMEOUT (seconds), REFRAIN_CHECK_COLLECTIVES=1.
  static GroupOptions from_environment();
};

// Returns when every rank has come. A world of one is a single_group; else CPU ranks need Gloo, CUDA ranks NCCL, and all are on
// devices of one kind: without the library it throws RendezvousError naming it. Throws RendezvousError for a host without an address, a taken port, a
// rank that is taken, a wrong token; RankLost for one that does not come.
std::unique_ptr<ProcessGroup> join_group(const Place& place, const Device& device, const GroupOptions& options);
std::unique_ptr<ProcessGroup> join_group(const Device& device);  // as the environment says

}  // namespace refrain
