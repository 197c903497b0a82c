// The functions of NCCL that the engine calls, for ranks that are threads of one process: non-blocking communicators alone, which
// take their time. What is called reaches the stream only when somebody has asked for the state, twice; a message blocks the streams
// of both ranks until both have come to it, or their communicator is aborted. Messages of other sizes than expected never meet.
#include <refrain/kernels/emulator/libraries/fake.h>
#include <refrain/kernels/emulator/libraries/nccl.h>
#include <refrain/kernels/emulator/libraries/nccl_types.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#if __has_include(<nccl.h>)
#include <nccl.h>

namespace theirs {
// What the backend declares itself is what NCCL declares.
namespace ours = refrain::cuda::nccl;
static_assert(sizeof(ours::UniqueId) == sizeof(ncclUniqueId) && alignof(ours::UniqueId) == alignof(ncclUniqueId));
static_assert(int(ours::unhandled_cuda_error) == ncclUnhandledCudaError && int(ours::system_error) == ncclSystemError);
static_assert(int(ours::internal_error) == ncclInternalError && int(ours::invalid_argument) == ncclInvalidArgument);
static_assert(int(ours::invalid_usage) == ncclInvalidUsage && int(ours::remote_error) == ncclRemoteError);
static_assert(int(ours::in_progress) == ncclInProgress && sizeof(ours::Result) == sizeof(ncclResult_t));
static_assert(int(ours::uint8) == ncclUint8 && sizeof(ours::DataType) == sizeof(ncclDataType_t));
static_assert(offsetof(ours::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(ours::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(ours::Config, blocking) == offsetof(ncclConfig_t, blocking));
}  // namespace theirs
#endif

namespace refrain::cuda::nccl {

namespace {

void join(const std::shared_ptr<World>& world, Comm* comm, int rank) {
  comm->world = world;
  comm->rank = rank;
  static_cast<void>(cudaGetDevice(&comm->device));
  world->comms[std::size_t(rank)] = comm;
  ++world->num_joined;
  all().comms.insert(comm);
  ++emulator::nccl_record().num_communicators;
  for (const Comm* other : world->comms) {
    if (other == nullptr || other == comm || other->device != comm->device) continue;
    for (Comm* each : world->comms) {
      if (each == nullptr) continue;
      each->error = invalid_usage;
      each->text = "Duplicate GPU detected : rank " + std::to_string(comm->rank) + " and rank " + std::to_string(other->rank) +
                   " both on CUDA device " + std::to_string(comm->device);
    }
  }
}

// The last rank to come makes the new communicators' worlds; each then finds its own.
Result look_at_split(Comm& comm) {
  World& world = *comm.world;
  World::Split& own = world.splits.at(comm.rank);
  if (own.comm == nullptr) {
    if (world.splits.size() < world.comms.size()) return in_progress;
    std::map<int, std::vector<std::pair<int, int>>> colors;  // key and rank
    for (const auto& [rank, split] : world.splits) colors[split.color].emplace_back(split.key, rank);
    for (auto& [color, ranks] : colors) {
      std::sort(ranks.begin(), ranks.end());
      const auto part = std::make_shared<World>();
      part->comms.resize(ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        auto* made = new Comm;
        made->world = part;
        made->rank = int(i);
        made->device = world.comms[std::size_t(ranks[i].second)]->device;
        part->comms[i] = made;
        all().comms.insert(made);
        ++emulator::nccl_record().num_communicators;
        world.splits.at(ranks[i].second).comm = made;
      }
      part->num_joined = int(ranks.size());
    }
  }
  *own.made = own.comm;
  own.made = nullptr;
  const bool is_last = std::all_of(world.splits.begin(), world.splits.end(), [](const auto& each) { return each.second.made == nullptr; });
  if (is_last) world.splits.clear();
  return success;
}

Result state_of(comm_t comm, std::vector<Operation>& ready) {
  const std::lock_guard lock(all().mutex);
  if (!is_known(comm)) return invalid_argument;
  if (emulator::nccl_record().failing_rank == comm->rank && comm->error == success) {
    comm->error = system_error;
    comm->text = "the test wants it";
  }
  if (comm->error != success) {
    all().last_error = comm->text;
    return comm->error;
  }
  if (comm->world->num_joined < int(comm->world->comms.size())) return in_progress;
  const auto split = comm->world->splits.find(comm->rank);
  if (split != comm->world->splits.end() && split->second.made != nullptr) return look_at_split(*comm);
  if (comm->num_looks == 0) return success;
  if (--comm->num_looks > 0) return in_progress;
  ready = std::move(comm->given);
  comm->given.clear();
  return success;
}

template <class F>
void* as_address(F function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

}  // namespace refrain::cuda::nccl

using namespace refrain::cuda::nccl;

const refrain::emulator::Fake& refrain::emulator::nccl_fake() {
  static const Fake fake = [] {
    Fake made{.file = "libnccl.so.2", .functions = {}};
    const auto add_function = [&]<class R, class... P>(const char* name, R (*Functions::*)(P...), R (*function)(P...)) {
      made.functions[name] = as_address(function);
    };
#define REFRAIN_FUNCTION(name, ...) add_function(#name, &Functions::name, +[] __VA_ARGS__)
    REFRAIN_FUNCTION(ncclGetVersion, (int* version) -> Result {
      *version = 22809;
      return success;
    });
    REFRAIN_FUNCTION(ncclGetUniqueId, (UniqueId* id) -> Result {
      const std::lock_guard lock(all().mutex);
      std::memset(id->internal, 0, sizeof id->internal);
      std::snprintf(id->internal, sizeof id->internal, "world %d", ++all().num_ids);
      return success;
    });
    REFRAIN_FUNCTION(ncclCommInitRankConfig, (comm_t* comm, int num_ranks, UniqueId id, int rank, Config* config) -> Result {
      const std::lock_guard lock(all().mutex);
      *comm = nullptr;
      if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0)
        return refused("the fake has non-blocking communicators only");
      std::shared_ptr<World>& world = all().worlds[id.internal];
      if (world == nullptr) {
        world = std::make_shared<World>();
        world->comms.resize(std::size_t(num_ranks));
      }
      if (int(world->comms.size()) != num_ranks || rank < 0 || rank >= num_ranks || world->comms[std::size_t(rank)] != nullptr)
        return invalid_argument;
      *comm = new Comm;
      join(world, *comm, rank);
      if (world->num_joined == num_ranks) all().worlds.erase(id.internal);
      return in_progress;
    });
    REFRAIN_FUNCTION(ncclCommSplit, (comm_t comm, int color, int key, comm_t* made_comm, Config* config) -> Result {
      const std::lock_guard lock(all().mutex);
      if (!is_known(comm) || color < 0) return invalid_argument;
      if (config == nullptr || config->blocking != 0) return refused("the fake has non-blocking communicators only");
      if (comm->num_looks > 0) return refused("a call while the communicator is in progress");
      *made_comm = nullptr;
      comm->world->splits[comm->rank] = {color, key, made_comm};
      return in_progress;
    });
    REFRAIN_FUNCTION(ncclCommAbort, (comm_t comm) -> Result {
      const std::lock_guard lock(all().mutex);
      if (!is_known(comm)) return invalid_argument;
      *comm->is_aborted = true;
      all().comms.erase(comm);
      --emulator::nccl_record().num_communicators;
      comm->world->comms[std::size_t(comm->rank)] = nullptr;
      comm->world->splits.erase(comm->rank);
      delete comm;
      return success;
    });
    REFRAIN_FUNCTION(ncclCommGetAsyncError, (comm_t comm, Result* error) -> Result {
      std::vector<Operation> ready;
      *error = state_of(comm, ready);
      if (!ready.empty()) put_on_stream(*comm, std::move(ready));  // without the lock: the queues have one, too
      return *error == invalid_argument ? invalid_argument : success;
    });
    REFRAIN_FUNCTION(ncclGetErrorString, (Result result) -> const char* {
      switch (result) {
        case success: return "no error";
        case unhandled_cuda_error: return "unhandled cuda error";
        case system_error: return "unhandled system error";
        case internal_error: return "internal error";
        case invalid_argument: return "invalid argument";
        case invalid_usage: return "invalid usage";
        case remote_error: return "remote process exited or there was a network error";
        case in_progress: return "NCCL operation in progress";
      }
      return "unknown result code";
    });
    REFRAIN_FUNCTION(ncclGetLastError, (comm_t) -> const char* {
      const std::lock_guard lock(all().mutex);
      static thread_local std::string text;
      text = all().last_error;
      return text.c_str();
    });
    REFRAIN_FUNCTION(ncclGroupStart, () -> Result { return begin_group(); });
    REFRAIN_FUNCTION(ncclGroupEnd, () -> Result { return end_group(); });
    REFRAIN_FUNCTION(ncclSend, (const void* from, std::size_t count, DataType, int peer, comm_t comm, cudaStream_t stream) -> Result {
      begin_group();
      const Result added = add({comm, true, static_cast<char*>(const_cast<void*>(from)), count, peer, stream});
      const Result ended = end_group();
      return added != success ? added : ended;
    });
    REFRAIN_FUNCTION(ncclRecv, (void* to, std::size_t count, DataType, int peer, comm_t comm, cudaStream_t stream) -> Result {
      begin_group();
      const Result added = add({comm, false, static_cast<char*>(to), count, peer, stream});
      const Result ended = end_group();
      return added != success ? added : ended;
    });
    REFRAIN_FUNCTION(ncclBroadcast,
                     (const void* from, void* to, std::size_t count, DataType, int root, comm_t comm, cudaStream_t stream) -> Result {
                       begin_group();
                       Result added = success;
                       if (comm->rank == root) {
                         for (int r = 0; r < int(comm->world->comms.size()) && added == success; ++r)
                           if (r != root) added = add({comm, true, static_cast<char*>(const_cast<void*>(from)), count, r, stream});
                       } else {
                         added = add({comm, false, static_cast<char*>(to), count, root, stream});
                       }
                       const Result ended = end_group();
                       return added != success ? added : ended;
                     });
#undef REFRAIN_FUNCTION
    return made;
  }();
  return fake;
}
