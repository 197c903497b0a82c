// A rank of a world that is only planned: scratch lives from the call to its wait(), as it will in the run.
#include <refrain/dist/call.h>
#include <refrain/dist/process_group.h>

#include <algorithm>

namespace refrain {

namespace {

class HeldScratch final : public detail::Pending {
 public:
  explicit HeldScratch(Tensor scratch) : scratch_(std::move(scratch)) {}
  void wait() override { scratch_ = {}; }
  bool is_done() const override { return true; }

 private:
  Tensor scratch_;
};

class PlannedGroup final : public ProcessGroup {
 public:
  PlannedGroup(const Device& device, int rank, int world_size) : ProcessGroup(device, rank, world_size) {
    check(!device.has_bytes(), "planned_group: expected a plan device, got ", device);
  }
  void abort(std::string_view) override {}
  void set_step(std::int64_t) override {}

 protected:
  Work begin(detail::Call call) override {
    return call.scratch.defined() ? Work(std::make_unique<HeldScratch>(std::move(call.scratch))) : Work();
  }
  std::unique_ptr<ProcessGroup> part(std::span<const int> ranks, std::int64_t) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank());
    return planned_group(device(), int(own - ranks.begin()), int(ranks.size()));
  }
};

}  // namespace

std::unique_ptr<ProcessGroup> planned_group(const Device& plan, int rank, int world_size) {
  return std::make_unique<PlannedGroup>(plan, rank, world_size);
}

}  // namespace refrain
