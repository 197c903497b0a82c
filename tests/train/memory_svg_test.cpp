#include <refrain/tests/support/catch.h>
#include <refrain/train/memory_svg.h>
#include <refrain/train/plan.h>
#include <refrain/train/report.h>

#include <algorithm>

using namespace refrain;
using Catch::Contains;

namespace {

Config small() {
  Config config;
  config.image_size = 8;
  config.channels = 1;
  config.patch_size = 4;
  config.width = 16;
  config.depth = 3;
  config.num_heads = 2;
  config.batch = 4;
  config.optimizer = "adamw";
  return config;
}

}  // namespace

TEST_CASE("memory svg: one step stacked by kind, with its highest total, and a title that cannot be markup") {
  const Plan plan = plan_training(small(), {.num_train = 16, .num_test = 4, .timeline = true});
  const std::string svg = memory_svg(*plan.timeline, "a <b> & \"c\"");
  CHECK(svg.starts_with("<svg"));
  CHECK_THAT(svg, Contains("a &lt;b&gt; &amp; &quot;c&quot;"));
  for (const char* kind : {"parameter", "optimizer_state", "gradient", "saved", "temporary", "input"}) CHECK_THAT(svg, Contains(kind));
  CHECK_THAT(svg, !Contains("communication"));
  // The step's own highest total, from its events.
  const Timeline& timeline = *plan.timeline;
  std::int64_t begin = 0, end = timeline.end_tick(), highest = 0;
  for (const TimelineMark& mark : timeline.marks()) {
    if (mark.label.starts_with("step ")) begin = mark.tick, end = timeline.end_tick();
    else if (mark.tick > begin && end == timeline.end_tick()) end = mark.tick;
  }
  for (std::int64_t tick = begin; tick < end; ++tick) {
    std::int64_t live = 0;
    for (const MemoryBlock& block : timeline.blocks())
      if (block.birth <= tick && (block.death < 0 || block.death > tick)) live += block.bytes;
    highest = std::max(highest, live);
  }
  CHECK_THAT(svg, Contains("highest " + bytes_text(highest)));
  CHECK_THAT(svg, Contains("one step"));
}

TEST_CASE("memory svg: without a mark of a step it is the whole timeline, and says nothing of a step") {
  const Device device = Device::plan();
  device.start_timeline();
  device.mark("stepping stone");
  { const Tensor x = empty({1000}, DType::f32, device); }
  { const Tensor y = empty({3000}, DType::f32, device); }
  device.mark("evaluation");
  { const Tensor z = empty({2000}, DType::f32, device); }
  const Timeline timeline = device.timeline();
  device.stop_timeline();
  CHECK(!last_step(timeline));
  const std::string svg = memory_svg(timeline, "t");
  CHECK_THAT(svg, Contains("highest " + bytes_text(12000)) && Contains("allocations and releases") && !Contains("one step"));
}
