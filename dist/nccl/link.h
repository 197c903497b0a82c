// NCCL as the engine sees it: a communicator on one device, with a stream of its own beside the device's kernels. Needs no header
// of CUDA's or NCCL's; dist/nccl/cuda has it, or a stub in a build without CUDA.
#pragma once

#include <refrain/core/device.h>
#include <refrain/kernels/reduce/reduce_ranks.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace refrain::detail {

// Why NCCL cannot be used: no CUDA in this build, no library, one that is too old. Empty where it can.
std::string nccl_problem();

// NCCL said no.
struct NcclError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using NcclId = std::array<char, 128>;
NcclId new_nccl_id();  // throws NcclError

struct NcclMessage {
  int peer;
  bool is_send;
  void* bytes;  // the device's, or headers()
  std::int64_t count;
};

class NcclLink {
 public:
  // A point in a stream's work.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual bool is_reached() const = 0;  // throws CudaError for what the device could not do
  };

  // Called again and again while the link waits for NCCL; throws to give up.
  using Patience = std::function<void()>;

  virtual ~NcclLink() = default;  // abort()

  // Behind all work the device was given so far. For the thread that gives it; ends a CUDA graph's section.
  virtual std::unique_ptr<Mark> device_mark() = 0;

  // What follows goes in order on the communicator's stream, from one thread. All throw NcclError, or CudaError.
  virtual void attach() = 0;  // this thread is the one
  virtual void wait_for(const Mark& mark) = 0;
  // One group: the messages travel side by side, and messages between two ranks meet in order. Returns when NCCL has put it on the
  // stream; of 0 bytes nothing is sent.
  virtual void exchange(std::span<const NcclMessage> messages, const Patience& patience) = 0;
  virtual void broadcast(void* bytes, std::int64_t count, int root, const Patience& patience) = 0;
  virtual void reduce(const ReduceRanks& k) = 0;
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual std::unique_ptr<Mark> mark() = 0;
  // Throws NcclError for what NCCL has met meanwhile.
  virtual void check() = 0;
  // All ranks at the same place; `color` is the same on the ranks of one new link, which `key` orders.
  virtual std::unique_ptr<NcclLink> split(int color, int key, const Patience& patience) = 0;
  // Ends all work of this link, here and now.
  virtual void abort() noexcept = 0;

  // Pinned host memory that messages may go from and to, as the host and as the device see it.
  struct Headers {
    std::byte *host, *device;
  };
  virtual Headers headers() const = 0;
};

// `header_bytes`: how large its headers() are, and those of links split from it.
std::unique_ptr<NcclLink> open_nccl_link(const Device& device, const NcclId& id, int rank, int world_size, std::int64_t header_bytes,
                                         const NcclLink::Patience& patience);

}  // namespace refrain::detail
