// Copies of the model that train apart (local_sgd) have an optimizer state and a loss scale each, and all of them come into one
// snapshot, which rank 0 alone writes: optimizer-replica-1.safetensors, … where states differ, and their numbers, replicas.json.
// The others send theirs, a tensor at a time, so that no rank but rank 0 needs the run directory to write. Internal.
#pragma once

#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/dist/process_group.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace refrain {

// What a rank's optimizer state belongs to.
struct Replicas {
  int count = 1, own = 0;
  int size = 1;                   // neighbouring ranks that are one
  ProcessGroup* world = nullptr;  // null where there is one
  bool are_alike = true;          // all ranks have made the last step together
  bool keep_tensors = false;      // each goes on with its own moments
};

struct ReplicaNumbers {
  std::map<std::string, double> optimizer, scaler;
};

std::string replica_file(int replica);

// On every rank of the other replicas: `tensors` are what add_replica_states() expects of them.
void send_replica_state(const Replicas& replicas, std::vector<StoredTensor> tensors, const ReplicaNumbers& numbers);
// On rank 0: the other replicas' tensors, which are called and shaped as its own, and numbers.
void add_replica_states(SnapshotWriter& writer, const Replicas& replicas, const std::vector<StoredTensor>& own_tensors,
                        const ReplicaNumbers& own_numbers);
// Those of replica 1 and the following; empty where the snapshot has one. Throws DataError.
std::vector<ReplicaNumbers> read_replica_numbers(const std::filesystem::path& snapshot);

}  // namespace refrain
