#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/gloo/mesh.h>
#include <refrain/dist/net/no_signals.h>

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <set>

namespace refrain::detail {

namespace {

// Gloo's own context, connected by our store instead of one of Gloo's.
class Connected final : public ::gloo::Context {
 public:
  using ::gloo::Context::Context;

  void open(StoreMember& store, const std::shared_ptr<::gloo::transport::Device>& device, std::chrono::milliseconds timeout) {
    device_ = device;
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(timeout);
    setTimeout(timeout);
    PayloadWriter own;
    for (int r = 0; r < size; ++r) {
      if (r == rank) {
        own.text("");
        continue;
      }
      auto& pair = transportContext_->createPair(r);
      pair->setLocalRank(0);
      const std::vector<char> address = pair->address().bytes();
      own.text({address.data(), address.size()});
    }
    parts_ = store.exchange(own.bytes());
  }

  void connect() {
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      PayloadReader reader(parts_[std::size_t(r)]);
      std::string address;
      for (int to = 0; to <= rank; ++to) address = reader.text(::gloo::transport::Address::kMaxByteSize);
      transportContext_->getPair(r)->connect({address.begin(), address.end()});
    }
    parts_.clear();
  }

 private:
  std::vector<std::string> parts_;
};

}  // namespace

struct Transfer::State {
  Mesh::Impl& mesh;
  int peer;
  bool is_send;
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;

  ~State();
};

struct Mesh::Impl {
  std::shared_ptr<Connected> context;
  std::chrono::milliseconds timeout;
  std::mutex mutex;  // guards what follows
  std::set<Transfer::State*> active;
  bool is_closed = false;
};

Transfer::State::~State() {
  const std::lock_guard lock(mesh.mutex);
  mesh.active.erase(this);
}

Transfer::Transfer() = default;
Transfer::Transfer(Transfer&& other) noexcept = default;
Transfer& Transfer::operator=(Transfer&& other) noexcept = default;
Transfer::~Transfer() = default;

Mesh::Mesh(StoreMember& store, int rank, int world_size, const GroupOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->timeout = options.collective_timeout;
  // Gloo writes without MSG_NOSIGNAL, from its own thread, which inherits this, and from the worker: a broken connection is to be an
  // error there.
  const NoSignals no_signals;
  try {
    ::gloo::transport::tcp::attr attributes(store.local_address().c_str());
    auto device = ::gloo::transport::tcp::CreateDevice(attributes);
    impl_->context = std::make_shared<Connected>(rank, world_size);
    impl_->context->open(store, device, options.rendezvous_timeout);
    // Gloo waits long for one that died meanwhile, unless its end is closed.
    store.on_verdict([context = impl_->context] { context->closeConnections(); });
    impl_->context->connect();
    store.on_verdict({});
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    store.on_verdict({});
    // The store knows in milliseconds if a process has ended.
    if (!store.wait_for_verdict(std::chrono::seconds(1)))
      store.abort(concat("it could not connect to the others: ", error.what()));
    store.wait_for_verdict(std::chrono::seconds(1));
    if (!store.verdict()) fail<RankLost>("the ranks could not be connected: ", error.what());
  }
  if (const auto verdict = store.verdict()) throw_lost_while_forming(*verdict);
}

Mesh::~Mesh() { close(); }

Transfer Mesh::send(int to, std::uint64_t slot, const void* bytes, std::size_t count) {
  return start(to, slot, const_cast<void*>(bytes), count, true);
}

Transfer Mesh::receive(int from, std::uint64_t slot, void* bytes, std::size_t count) {
  return start(from, slot, bytes, count, false);
}

Transfer Mesh::start(int peer, std::uint64_t slot, void* bytes, std::size_t count, bool is_send) {
  Transfer transfer;
  if (count == 0) return transfer;
  transfer.state_.reset(new Transfer::State{*impl_, peer, is_send, impl_->context->createUnboundBuffer(bytes, count)});
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->is_closed) throw TransferError(peer, false, "the connection is closed");
    impl_->active.insert(transfer.state_.get());
  }
  try {
    if (is_send)
      transfer.state_->buffer->send(peer, slot);
    else
      transfer.state_->buffer->recv(peer, slot);
  } catch (const std::exception& error) {
    throw TransferError(peer, false, error.what());
  }
  return transfer;
}

void Transfer::wait() {
  if (state_ == nullptr) return;
  const Clock::time_point start = Clock::now();
  const auto timeout = state_->mesh.timeout;
  const int peer = state_->peer;
  bool is_done = false;
  try {
    is_done = state_->is_send ? state_->buffer->waitSend(timeout) : state_->buffer->waitRecv(timeout);
  } catch (const std::exception& error) {
    throw TransferError(peer, Clock::now() - start >= timeout, error.what());
  }
  if (!is_done) throw TransferError(peer, false, "the connection is closed");
  state_.reset();
}

void Mesh::close() {
  const std::lock_guard lock(impl_->mutex);
  if (std::exchange(impl_->is_closed, true)) return;
  for (Transfer::State* state : impl_->active) {
    if (state->is_send)
      state->buffer->abortWaitSend();
    else
      state->buffer->abortWaitRecv();
  }
  if (impl_->context) impl_->context->closeConnections();
}

}  // namespace refrain::detail

#endif  // REFRAIN_HAS_GLOO
