// The part of NCCL's C interface that is used, declared here as nccl.h of 2.18 has it: builds need no header of NCCL's, and
// programs open the library when a group of CUDA ranks is formed. Later versions take these words as they are (a configuration
// tells its own size and version).
#pragma once

#include <refrain/kernels/common/cuda/library.h>

#include <driver_types.h>

#include <cstddef>

namespace refrain::cuda::nccl {

// Library versions are 10000·major + 100·minor + patch.
inline constexpr int kLeastVersion = 21800;

struct Comm;  // ncclComm
using comm_t = Comm*;

struct UniqueId {  // ncclUniqueId
  char internal[128];
};

enum Result {  // ncclResult_t
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum DataType { uint8 = 1 };  // ncclDataType_t: everything travels as bytes

struct Config {  // ncclConfig_t up to 2.14, whose fields every later version has in front
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

// The functions by their own names. Null where the library has none.
struct Functions {
  explicit Functions(Library& library);

  Result (*ncclGetVersion)(int* version);
  Result (*ncclGetUniqueId)(UniqueId* id);
  Result (*ncclCommInitRankConfig)(comm_t* comm, int num_ranks, UniqueId id, int rank, Config* config);
  Result (*ncclCommSplit)(comm_t comm, int color, int key, comm_t* made, Config* config);
  Result (*ncclCommAbort)(comm_t comm);
  Result (*ncclCommGetAsyncError)(comm_t comm, Result* error);
  const char* (*ncclGetErrorString)(Result result);
  const char* (*ncclGetLastError)(comm_t comm);
  Result (*ncclGroupStart)();
  Result (*ncclGroupEnd)();
  Result (*ncclSend)(const void* from, std::size_t count, DataType type, int peer, comm_t comm, cudaStream_t stream);
  Result (*ncclRecv)(void* to, std::size_t count, DataType type, int peer, comm_t comm, cudaStream_t stream);
  Result (*ncclBroadcast)(const void* from, void* to, std::size_t count, DataType type, int root, comm_t comm, cudaStream_t stream);
};

inline Functions::Functions(Library& library) {
#define REFRAIN_FUNCTION(name) name = library.find<decltype(name)>(#name)
  REFRAIN_FUNCTION(ncclGetVersion);
  REFRAIN_FUNCTION(ncclGetUniqueId);
  REFRAIN_FUNCTION(ncclCommInitRankConfig);
  REFRAIN_FUNCTION(ncclCommSplit);
  REFRAIN_FUNCTION(ncclCommAbort);
  REFRAIN_FUNCTION(ncclCommGetAsyncError);
  REFRAIN_FUNCTION(ncclGetErrorString);
  REFRAIN_FUNCTION(ncclGetLastError);
  REFRAIN_FUNCTION(ncclGroupStart);
  REFRAIN_FUNCTION(ncclGroupEnd);
  REFRAIN_FUNCTION(ncclSend);
  REFRAIN_FUNCTION(ncclRecv);
  REFRAIN_FUNCTION(ncclBroadcast);
#undef REFRAIN_FUNCTION
}

}  // namespace refrain::cuda::nccl
