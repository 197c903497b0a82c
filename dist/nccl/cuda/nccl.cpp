// NCCL's non-blocking communicators. Every call is made by one thread at a time: the link's own.
#include <refrain/core/cuda/cuda_range.cuh>
#include <refrain/kernels/common/cuda/nccl_functions.cuh>
#include <refrain/dist/nccl/link.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace refrain::detail {

namespace nccl = cuda::nccl;

namespace {

struct Api {
  cuda::Library library{"libnccl.so.2"};
  nccl::Functions functions{library};
  std::string problem = problem_of();

 private:
  std::string problem_of() const {
    if (const std::string why = library.problem(); !why.empty())  // the loader's words may name it themselves
      return why.find(library.file()) != std::string::npos ? why : library.file() + ": " + why;
    int version = 0;
    if (functions.ncclGetVersion(&version) != nccl::success) return library.file() + " does not tell its version";
    if (version < nccl::kLeastVersion)
      return concat(library.file(), " is version ", version / 10000, ".", version / 100 % 100, ", at least ",
                    nccl::kLeastVersion / 10000, ".", nccl::kLeastVersion / 100 % 100, " is needed");
    return {};
  }
};
// Opened when first asked for, never closed.
const Api& api() {
  static const Api& api = *new Api;
  return api;
}

// `in_progress` is no error: such calls are waited for.
void check_nccl(nccl::Result result, nccl::comm_t comm, std::string_view what) {
  if (result == nccl::success || result == nccl::in_progress) return;
  const char* const text = api().functions.ncclGetErrorString(result);
  const char* const last = api().functions.ncclGetLastError(comm);
  throw NcclError(concat("NCCL: ", what, ": ", text, last != nullptr && *last != '\0' ? concat(" (", last, ")") : ""));
}

class EventMark final : public NcclLink::Mark {
 public:
  explicit EventMark(cudaStream_t stream) { event.record(stream); }
  bool is_reached() const override { return event.is_reached(); }
  cuda::Event event;
};

class Link final : public NcclLink {
 public:
  Link(const Device& device, std::int64_t header_bytes)
      : device_(device), header_bytes_(header_bytes), range_(static_cast<const cuda::CudaRange&>(*device.state().range)) {
    cuda::make_current(device.index());
    own_ = std::make_unique<Own>(header_bytes);
  }
  ~Link() override {
    static_cast<void>(cudaSetDevice(device_.index()));
    abort();
    static_cast<void>(cudaStreamSynchronize(own_->stream.get()));
  }

  void open(const NcclId& id, int rank, int world_size, const Patience& patience) {
    nccl::UniqueId unique;
    std::memcpy(unique.internal, id.data(), id.size());
    nccl::Config config;
    check_nccl(api().functions.ncclCommInitRankConfig(&comm_, world_size, unique, rank, &config), comm_, "making a communicator");
    finish(comm_, "making a communicator", patience);
  }

  std::unique_ptr<Mark> device_mark() override {
    cuda::make_current(device_.index());
    return std::make_unique<EventMark>(range_.compute());
  }
  void attach() override { cuda::make_current(device_.index()); }
  void wait_for(const Mark& mark) override { static_cast<const EventMark&>(mark).event.before(own_->stream.get()); }

  void exchange(std::span<const NcclMessage> messages, const Patience& patience) override {
    const nccl::Functions& f = api().functions;
    bool is_empty = true;
    for (const NcclMessage& message : messages) is_empty = is_empty && message.count == 0;
    if (is_empty) return;
    check_nccl(f.ncclGroupStart(), comm_, "beginning an exchange");
    nccl::Result first = nccl::success;
    for (const NcclMessage& m : messages) {
      if (m.count == 0 || (first != nccl::success && first != nccl::in_progress)) continue;
      first = m.is_send ? f.ncclSend(m.bytes, std::size_t(m.count), nccl::uint8, m.peer, comm_, own_->stream.get())
                        : f.ncclRecv(m.bytes, std::size_t(m.count), nccl::uint8, m.peer, comm_, own_->stream.get());
    }
    const nccl::Result end = f.ncclGroupEnd();
    check_nccl(first, comm_, "a message");
    check_nccl(end, comm_, "an exchange");
    finish(comm_, "an exchange", patience);
  }

  void broadcast(void* bytes, std::int64_t count, int root, const Patience& patience) override {
    if (count == 0) return;
    check_nccl(api().functions.ncclBroadcast(bytes, bytes, std::size_t(count), nccl::uint8, root, comm_, own_->stream.get()), comm_,
               "a broadcast");
    finish(comm_, "a broadcast", patience);
  }

  void reduce(const ReduceRanks& k) override {
    validate(k);
    run(Cuda{.stream = own_->stream.get(), .fault = nullptr, .index = device_.index()}, k);
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    cuda::check_cuda(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToDevice, own_->stream.get()), "copying on the device");
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<EventMark>(own_->stream.get()); }

  void check() override {
    nccl::Result state = nccl::success;
    check_nccl(api().functions.ncclCommGetAsyncError(comm_, &state), comm_, "asking for errors");
    check_nccl(state, comm_, "meanwhile");
  }

  std::unique_ptr<NcclLink> split(int color, int key, const Patience& patience) override {
    auto made = std::make_unique<Link>(device_, header_bytes_);
    nccl::Config config;
    check_nccl(api().functions.ncclCommSplit(comm_, color, key, &made->comm_, &config), comm_, "splitting a communicator");
    try {
      finish(comm_, "splitting a communicator", patience);
    } catch (...) {
      abort();  // ends what may still write to made->comm_
      throw;
    }
    made->finish(made->comm_, "splitting a communicator", patience);
    return made;
  }

  void abort() noexcept override {
    if (comm_ == nullptr) return;
    static_cast<void>(api().functions.ncclCommAbort(comm_));
    comm_ = nullptr;
  }

  Headers headers() const override { return {own_->headers.data(), static_cast<std::byte*>(own_->headers.device_data())}; }

 private:
  // What belongs to the device that is current where it is made.
  struct Own {
    explicit Own(std::int64_t header_bytes) : headers(header_bytes) {}
    cuda::Stream stream;
    cuda::PinnedMemory headers;
  };

  // Non-blocking: a call has begun when it returns, and is over when the state says so.
  static void finish(nccl::comm_t comm, std::string_view what, const Patience& patience) {
    for (int tries = 0;; ++tries) {
      nccl::Result state = nccl::success;
      check_nccl(api().functions.ncclCommGetAsyncError(comm, &state), comm, what);
      check_nccl(state, comm, what);
      if (state == nccl::success) return;
      patience();
      if (tries < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Device device_;  // keeps the range
  const std::int64_t header_bytes_;
  const cuda::CudaRange& range_;
  std::unique_ptr<Own> own_;
  nccl::comm_t comm_ = nullptr;
};

}  // namespace

std::string nccl_problem() { return api().problem; }

NcclId new_nccl_id() {
  nccl::UniqueId unique;
  check_nccl(api().functions.ncclGetUniqueId(&unique), nullptr, "making an id");
  NcclId id;
  std::memcpy(id.data(), unique.internal, id.size());
  return id;
}

std::unique_ptr<NcclLink> open_nccl_link(const Device& device, const NcclId& id, int rank, int world_size, std::int64_t header_bytes,
                                         const NcclLink::Patience& patience) {
  auto link = std::make_unique<Link>(device, header_bytes);
  link->open(id, rank, world_size, patience);
  return link;
}

}  // namespace refrain::detail
