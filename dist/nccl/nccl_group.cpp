#include <refrain/dist/nccl/engine.h>
#include <refrain/dist/nccl/nccl_group.h>

#include <algorithm>
#include <cstring>

namespace refrain::detail {

namespace {

class NcclPending final : public Pending {
 public:
  NcclPending(std::shared_ptr<NcclEngine> engine, std::shared_ptr<NcclEngine::Operation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}

  ~NcclPending() override {
    if (has_ended_) return;
    // The tensors are about to go: nobody may be left writing to them.
    try {
      if (!engine_->is_done(*operation_)) engine_->world().abort("it gave up " + operation_->name);
      engine_->wait(*operation_);
    } catch (const std::exception&) {  // it was given up
    }
  }

  void wait() override {
    has_ended_ = true;  // with or without success
    engine_->wait(*operation_);
  }

  bool is_done() const override { return engine_->is_done(*operation_); }

 private:
  std::shared_ptr<NcclEngine> engine_;
  std::shared_ptr<NcclEngine::Operation> operation_;  // holds tensors and scratch
  bool has_ended_ = false;
};

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(const Device& device, int rank, int world_size, std::shared_ptr<NcclEngine> engine)
      : ProcessGroup(device, rank, world_size), engine_(std::move(engine)) {}
  ~NcclGroup() override { engine_->stop(std::uncaught_exceptions() == num_exceptions_); }

  void abort(std::string_view reason) override { engine_->world().abort(reason); }
  void set_step(std::int64_t step) override { engine_->world().set_step(step); }

 protected:
  Work begin(Call call) override { return Work(std::make_unique<NcclPending>(engine_, engine_->issue(std::move(call)))); }
  std::unique_ptr<ProcessGroup> part(std::span<const int> ranks, std::int64_t) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank());
    return std::make_unique<NcclGroup>(device(), int(own - ranks.begin()), int(ranks.size()), engine_->part(ranks));
  }

 private:
  std::shared_ptr<NcclEngine> engine_;
  const int num_exceptions_ = std::uncaught_exceptions();
};

// What a rank brings to the exchange of addresses; rank 0's is followed by the id. A rank on another device brings something else.
constexpr std::string_view kMark = "nccl";

NcclId agreed_id(StoreMember& store, int rank) {
  std::string own(kMark);
  if (rank == 0) {
    const NcclId id = new_nccl_id();
    own.append(id.data(), id.size());
  }
  const std::vector<std::string> parts = store.exchange(own);
  for (std::size_t r = 0; r < parts.size(); ++r)
    if (parts[r].compare(0, kMark.size(), kMark) != 0) throw NcclError(concat("rank ", r, " is not on a CUDA device"));
  NcclId id{};
  if (parts[0].size() != kMark.size() + id.size()) throw NcclError("rank 0 has brought no id");
  std::memcpy(id.data(), parts[0].data() + kMark.size(), id.size());
  return id;
}

std::unique_ptr<Connections> connect(StoreMember& store, const Place& place, const Device& device, const GroupOptions& options) {
  const Clock::time_point deadline = Clock::now() + options.rendezvous_timeout;
  const NcclLink::Patience patience = [&] {
    if (store.verdict()) throw NcclError("another rank is lost");
    if (Clock::now() > deadline) throw NcclError("the others did not come to it in time");
  };
  try {
    const NcclId id = agreed_id(store, place.rank);
    return std::make_unique<NcclConnections>(
        open_nccl_link(device, id, place.rank, place.world_size, NcclEngine::header_bytes(place.world_size), patience));
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    // Where all ranks see the same, each says so itself.
    const bool is_first = !store.verdict();
    if (is_first) store.abort(concat("it could not connect to the others: ", error.what()));
    if (const auto verdict = store.wait_for_verdict(std::chrono::seconds(1)); verdict && verdict->rank != place.rank)
      throw_lost_while_forming(*verdict);
    fail<RendezvousError>("the ranks' GPUs could not be connected: ", error.what());
  }
}

}  // namespace

std::unique_ptr<ProcessGroup> nccl_group(const Place& place, const Device& device, const GroupOptions& options) {
  const std::string problem = nccl_problem();
  check<RendezvousError>(problem.empty(), "more than one rank on CUDA devices needs NCCL: ", problem);
  const auto world = std::make_shared<World>(
      place, options, [&](StoreMember& store) { return connect(store, place, device, options); });
  return std::make_unique<NcclGroup>(device, place.rank, place.world_size, std::make_shared<NcclEngine>(world));
}

}  // namespace refrain::detail
