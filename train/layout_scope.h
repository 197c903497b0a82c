// A training's device follows the layout of its plan while this lives, with packing = "plan".
#pragma once

#include <refrain/core/device.h>
#include <refrain/train/config.h>

namespace refrain {

class LayoutScope {
 public:
  // Plans the training. Does nothing on a device that holds tensors already: the layout begins at its bottom.
  LayoutScope(const Config& config, const Device& device, int world_size = 1, int rank = 0);
  ~LayoutScope();
  LayoutScope(const LayoutScope&) = delete;
  LayoutScope& operator=(const LayoutScope&) = delete;

 private:
  Device device_;
  bool is_set_ = false;
};

}  // namespace refrain
