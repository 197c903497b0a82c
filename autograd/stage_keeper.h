// Who brings the parameters of a stage into memory before they are read, where they are not there all the time: sharded over
// ranks, or streamed from host memory.
#pragma once

#include <cstdint>

namespace refrain {

class StageKeeper {
 public:
  virtual ~StageKeeper() = default;
  // Stage `index` of the model is about to compute: forward, replay, or backward. Parameters of others may go.
  virtual void enter(std::uint32_t index) = 0;
  // A value that stage `index` made is about to be made again while another stage computes: its parameters are needed as well,
  // until the next enter().
  virtual void require(std::uint32_t index) = 0;
  // Of several backwards through the present stage the second begins: from now on its gradients stand beside what the stage before
  // has left under way, which has had its time.
  virtual void settle() {}
};

// Null where parameters are there all the time.
StageKeeper* stage_keeper();

// The keeper of the models that run on this thread in the scope; null: parameters are there.
class StageKeeperScope {
 public:
  explicit StageKeeperScope(StageKeeper* keeper);
  ~StageKeeperScope();
  StageKeeperScope(const StageKeeperScope&) = delete;
  StageKeeperScope& operator=(const StageKeeperScope&) = delete;

 private:
  StageKeeper* old_;
};

}  // namespace refrain
