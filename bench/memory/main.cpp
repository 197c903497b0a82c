// bench_memory: what knowing about memory costs. Steps with and without a timeline take turns; the ledger, which cannot be
// turned off, is timed by itself, event by event, and compared with the step.
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/device.h>
#include <refrain/core/parallel.h>
#include <refrain/models/vit.h>
#include <refrain/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace refrain;

double seconds_of(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of one birth and one death in a ledger with as many modules as the model has, at a peak that is never passed.
double ledger_seconds_per_block(int num_modules) {
  Ledger ledger;
  std::vector<MemoryTag> tags;
  for (int i = 0; i < num_modules; ++i) {
    MemoryTag tag;
    tag.module = ModulePath::child(ModulePath::root(), "bench." + std::to_string(i));
    tags.push_back(tag);
  }
  ledger.add(tags[0], std::int64_t{1} << 40);
  ledger.remove(tags[0], std::int64_t{1} << 40);
  constexpr int kBlocks = 2'000'000;
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    rounds.push_back(seconds_of([&] {
      for (int i = 0; i < kBlocks; ++i) {
        const MemoryTag& tag = tags[std::size_t(i % num_modules)];
        ledger.add(tag, 64 + i);
        ledger.remove(tag, 64 + i);
      }
    }));
  }
  return *std::min_element(rounds.begin(), rounds.end()) / kBlocks;
}

// Seconds that a timeline adds to one birth and one death, with 2000 other blocks alive. The least of several rounds: what else
// the machine does only ever adds.
double timeline_seconds_per_block() {
  const Device device = Device::plan();
  std::vector<Tensor> others;
  for (int i = 0; i < 2000; ++i) others.push_back(empty({64 + i}, DType::u8, device));
  const auto least = [&](bool is_on) {
    constexpr int kBlocks = 20'000;
    double seconds = 1;
    for (int round = 0; round < 9; ++round) {
      if (is_on) device.start_timeline({.keep_marks = 2});
      const auto run = [&] {
        for (int i = 0; i < kBlocks; ++i) {
          if (i % 4000 == 0) device.mark("step");
          empty({1 + i % 5000}, DType::u8, device);
        }
      };
      run();  // the vectors grow
      seconds = std::min(seconds, seconds_of(run) / kBlocks);
      device.stop_timeline();
    }
    return seconds;
  };
  return least(true) - least(false);
}

struct Case {
  const char* name;
  VitConfig config;
  std::int64_t batch;
  CheckpointKind checkpoint;
};

void measure(const Case& c, int num_rounds) {
  const Device device = Device::cpu();
  const auto model = std::make_shared<Vit>(c.config);
  Sgd optimizer({{.parameters = model->parameters()}}, {});
  const Tensor images = full({c.batch, c.config.channels, c.config.image_height, c.config.image_width}, 0.5, DType::f32, device);
  const Tensor labels = zeros({c.batch}, DType::i64, device);
  const auto step = [&] {
    device.mark("step");
    backward(cross_entropy((*model)(images, {.kind = c.checkpoint}), labels, {}));
    optimizer.step(0.001);
    optimizer.zero_grad();
  };
  step();
  device.start_timeline();
  step();
  std::int64_t births = 0;
  for (const MemoryEvent& event : device.timeline().events()) births += event.what == MemoryEvent::What::birth;
  device.stop_timeline();

  std::vector<double> off, on, share;
  for (int round = 0; round < num_rounds; ++round) {
    double with = 0, without = 0;
    const auto run_without = [&] { without = seconds_of(step); };
    const auto run_with = [&] {
      device.start_timeline({.keep_marks = 3});
      step();  // the first one fills the vectors
      with = seconds_of(step);
      device.stop_timeline();
    };
    if (round % 2 == 0) run_without(), run_with();
    else run_with(), run_without();
    off.push_back(without);
    on.push_back(with);
    share.push_back(with / without - 1);
  }
  const double step_seconds = median(off), ledger = double(births) * ledger_seconds_per_block(200);
  std::cout << c.name << ": " << births << " allocations a step; step " << 1e3 * step_seconds << " ms, with a timeline " << 1e3 * median(on)
            << " ms; timeline " << 100 * median(share) << " % (median of " << num_rounds << " pairs), "
            << 100 * double(births) * timeline_seconds_per_block() / step_seconds << " % by its cost per block; ledger "
            << 100 * ledger / step_seconds << " %" << std::endl;
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::stoi(words[1]) : 15;
  VitConfig small;
  small.image_height = small.image_width = 28;
  small.channels = 1;
  small.patch = 4;
  small.width = 64;
  small.depth = 6;
  small.num_heads = 4;
  small.num_classes = 10;
  VitConfig large = small;
  large.image_height = large.image_width = 224;
  large.channels = 3;
  large.patch = 16;
  large.width = 384;
  large.depth = 12;
  large.num_heads = 6;
  const double ns = 1e9;
  std::cout << num_threads() << " threads; of one block's birth and death: ledger " << ns * ledger_seconds_per_block(200)
            << " ns, timeline " << ns * timeline_seconds_per_block() << " ns more" << std::endl;
  measure({"small ViT, batch 64", small, 64, CheckpointKind::none}, 4 * rounds);
  measure({"small ViT, batch 64, a region per block", small, 64, CheckpointKind::block}, 4 * rounds);
  measure({"ViT-S/16, batch 4, a region per block", large, 4, CheckpointKind::block}, rounds);
  return 0;
}
