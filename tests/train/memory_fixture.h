// Small trainings for the tests of receipts, remedies and exports.
#pragma once

#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/plan.h>
#include <refrain/train/run.h>

#include <string>

namespace refrain::testing {

// 50 training and 20 test images in batches of 8: the last batch of both is short.
inline Config small_vit(const ScratchDirectory& scratch) {
  write_images(scratch);
  Config config;
  config.patch_size = 4;
  config.width = 16;
  config.depth = 4;
  config.num_heads = 2;
  config.mlp_ratio = 2;
  config.data_path = scratch / "data";
  config.batch = 8;
  config.epochs = 2;
  config.lr = 0.01;
  config.snapshot_every = 0;
  return config;
}

inline Config small_gpt2(const ScratchDirectory& scratch) {
  Config config = small_vit(scratch);
  std::string text;
  for (int i = 0; i < 700; ++i) text += "the quick brown fox jumps over the lazy dog. "[(i * 7 + i / 45) % 45];
  scratch.write("text", text);
  config.model = "gpt2";
  config.data_format = "text";
  config.data_path = scratch / "text";
  config.context = 12;
  return config;
}

struct MeasuredTimeline {
  Timeline timeline;
  std::int64_t peak_bytes = 0, reserved_bytes = 0;
};

// Trains with a timeline of the last `steps` and gives it as it stood after the last evaluation.
inline MeasuredTimeline measure(Config config, const std::string& run_dir, std::int64_t steps = 1000) {
  config.run_dir = run_dir;
  config.timeline = steps;
  const Device device = Device::new_cpu();
  MeasuredTimeline measured;
  run_training(config, {.device = device},
               {.on_evaluation = [&](std::int64_t, double, const Evaluation&) { measured.timeline = device.timeline(); }});
  measured.peak_bytes = device.peak_bytes();
  measured.reserved_bytes = device.reserved_bytes();
  return measured;
}

}  // namespace refrain::testing
