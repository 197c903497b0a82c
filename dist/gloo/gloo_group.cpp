#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/gloo/engine.h>
#include <refrain/dist/gloo/gloo_group.h>

#include <algorithm>

namespace refrain::detail {

namespace {

class GlooPending final : public Pending {
 public:
  GlooPending(std::shared_ptr<Engine> engine, std::shared_ptr<Engine::Operation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}

  ~GlooPending() override {
    if (has_ended_) return;
    // The tensors are about to go: nobody may be left writing to them.
    try {
      if (!engine_->is_done(*operation_)) engine_->world().abort("it gave up " + engine_->name_of(operation_->call));
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
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Engine::Operation> operation_;  // holds tensors and scratch
  bool has_ended_ = false;
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(const Device& device, int rank, int world_size, std::shared_ptr<Engine> engine)
      : ProcessGroup(device, rank, world_size), engine_(std::move(engine)) {}
  ~GlooGroup() override { engine_->stop(std::uncaught_exceptions() == num_exceptions_); }

  void abort(std::string_view reason) override { engine_->world().abort(reason); }
  void set_step(std::int64_t step) override { engine_->world().set_step(step); }

 protected:
  Work begin(Call call) override { return Work(std::make_unique<GlooPending>(engine_, engine_->issue(std::move(call)))); }
  std::unique_ptr<ProcessGroup> part(std::span<const int> ranks, std::int64_t number) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank());
    return std::make_unique<GlooGroup>(device(), int(own - ranks.begin()), int(ranks.size()), engine_->part(ranks, number));
  }

 private:
  std::shared_ptr<Engine> engine_;
  const int num_exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<ProcessGroup> gloo_group(const Place& place, const Device& device, const GroupOptions& options) {
  const auto world = std::make_shared<World>(
      place, options, [&](StoreMember& store) { return std::make_unique<Mesh>(store, place.rank, place.world_size, options); });
  return std::make_unique<GlooGroup>(device, place.rank, place.world_size, std::make_shared<Engine>(world));
}

}  // namespace refrain::detail

#endif  // REFRAIN_HAS_GLOO
