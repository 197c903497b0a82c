// What lies behind the handles of the fake of NCCL, and what it does with groups. Everything is guarded by one mutex, which is
// taken after the queues' own.
#pragma once

#include <refrain/kernels/common/cuda/nccl_functions.cuh>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace refrain::cuda::nccl {

struct Message {
  std::vector<char> bytes;
  bool is_taken = false;
};

// The communicators of one id.
struct World {
  std::vector<Comm*> comms;
  int num_joined = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> mail;  // from, to
  struct Split {
    int color, key;
    comm_t* made;
    Comm* comm = nullptr;  // once all have come
  };
  std::map<int, Split> splits;  // by rank
};

struct Operation {
  Comm* comm;
  bool is_send;
  char* bytes;
  std::size_t count;
  int peer;
  cudaStream_t stream;
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  std::vector<Operation> given;  // not on the stream yet
  int num_looks = 0;             // until it is
  Result error = success;
  std::string text = {};
  std::shared_ptr<bool> is_aborted = std::make_shared<bool>(false);
};

struct All {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::set<Comm*> comms;
  std::string last_error;
  int num_ids = 0;
};
inline All& all() {
  static All* everything = new All;
  return *everything;
}

inline bool is_known(comm_t comm) { return all().comms.count(comm) > 0; }

inline Result refused(std::string why) {
  all().last_error = std::move(why);
  return invalid_usage;
}

// Groups are a thread's own. add() and put_on_stream() take the mutex.
Result begin_group();
Result add(Operation o);
Result end_group();
void put_on_stream(Comm& comm, std::vector<Operation> operations);

}  // namespace refrain::cuda::nccl
