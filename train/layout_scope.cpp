#include <refrain/train/layout_scope.h>

#include <refrain/core/check.h>
#include <refrain/core/memory/layout.h>
#include <refrain/train/plan.h>

namespace refrain {

LayoutScope::LayoutScope(const Config& config, const Device& device, int world_size, int rank) : device_(device) {
  if (config.packing != "plan" || device.live_count() > 0) return;
  try {
    if (const Plan plan = plan_training(config, {.work = false, .world_size = world_size, .rank = rank}); plan.layout) {
      device.set_placement(follow(plan.layout));
      is_set_ = true;
    }
  } catch (const InvalidArgument&) {
    // What cannot be planned cannot be run either, and the run says why with the data at hand. So with the next two.
  } catch (const DataError&) {
  } catch (const OutOfMemory&) {
  }
}

LayoutScope::~LayoutScope() {
  if (is_set_) device_.set_placement(nullptr);
}

}  // namespace refrain
