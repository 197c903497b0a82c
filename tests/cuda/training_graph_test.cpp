// Trainings whose steps are launched as CUDA graphs: bit for bit those that are not.
#include <refrain/core/cuda/backend.h>
#include <refrain/core/io/file.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/run.h>

#include <iterator>
#include <sstream>

using namespace refrain;
using namespace refrain::testing;

namespace {

struct Course {
  std::vector<double> losses, norms;
  std::int64_t skipped = 0;
  std::string weights, error;
  CudaGraphCounts counts;
};

Course train(const ScratchDirectory& scratch, const Config& tiny, const std::string& flags, bool has_graphs) {
  std::istringstream in(flags);
  const std::vector<std::string> words(std::istream_iterator<std::string>(in), {});
  const Device device = Device::new_cuda();
  Config config = with_flags(tiny, words);
  config.device = device_word(device);
  config.cuda_graph = has_graphs;
  config.run_dir = scratch / concat(has_graphs ? "graphs" : "plain", ' ', flags);
  Course course;
  const RunHooks hooks{.on_step = [&](const Progress& p) {
    course.losses.push_back(p.loss);
    course.norms.push_back(p.grad_norm);
    course.skipped = p.skipped_steps;
  }};
  try {
    const RunResult result = run_training(config, {.device = device}, hooks);
    course.losses.push_back(result.test.loss);
    course.weights = read_text_file(std::filesystem::path(config.run_dir) / "snapshots" / concat("step-", config.max_steps) / "model.safetensors");
  } catch (const Error& error) {
    course.error = error.what();
  }
  course.counts = cuda_graph_counts(device);
  return course;
}

// A short batch at the end of each epoch, and an evaluation behind it.
Config tiny(const ScratchDirectory& scratch, bool is_vit) {
  Config config = is_vit ? small_vit(scratch) : small_gpt2(scratch);
  config.depth = 2;
  config.epochs = 0;
  config.max_steps = 4;
  config.eval_every = 1;
  config.eval_batch = 10;
  config.num_classes = is_vit ? 2 : 0;
  config.log_every = 1;
  return config;
}

CudaGraphCounts check_alike(const ScratchDirectory& scratch, bool is_vit, const std::string& flags) {
  INFO((is_vit ? "vit " : "gpt2 ") << flags);
  const Config config = tiny(scratch, is_vit);
  const Course plain = train(scratch, config, flags, false), graphs = train(scratch, config, flags, true);
  CHECK(plain.error == "");
  CHECK(graphs.error == "");
  CHECK(graphs.losses == plain.losses);
  CHECK(graphs.norms == plain.norms);
  CHECK(graphs.weights == plain.weights);
  CHECK(graphs.skipped == plain.skipped);
  CHECK(plain.counts.launches == 0);
  CHECK(graphs.counts.launches > 0);
  CHECK(graphs.counts.instantiations < graphs.counts.launches);
  return graphs.counts;
}

}  // namespace

TEST_CASE("cuda graphs: a training's bits are those without, for vit and decoder, over accumulation, clipping and scaling", "[training]") {
  const ScratchDirectory scratch;
  check_alike(scratch, true, "");
  check_alike(scratch, true, "--accumulate 3 --batch 4 --clip-norm 1 --optimizer adamw --dropout 0.1 --checkpoint block");
  check_alike(scratch, true, "--update fused --checkpoint block");
  check_alike(scratch, true, "--precision 16-mixed --loss-scale-init 16777216 --clip-norm 1");
  check_alike(scratch, true, "--update fused --accumulate-schedule layerwise --accumulate 2 --batch 4 --clip-norm 1");
  check_alike(scratch, false, "--optimizer adamw --precision bf16-mixed --dropout 0.1");
  check_alike(scratch, false, "--precision bf16-true --update fused --loss-chunk 3");
}

TEST_CASE("cuda graphs: while shapes repeat, graphs are made executable in the second step alone", "[training]") {
  const ScratchDirectory scratch;
  const auto counts_after = [&](int steps) {
    Config config = tiny(scratch, true);
    config.batch = 4;
    config.eval_every = 0;
    config.max_steps = steps;
    return train(scratch, config, concat("--packing online --epochs 0 --seed ", steps), true).counts;
  };
  const CudaGraphCounts two = counts_after(2), three = counts_after(3);
  CHECK(two.instantiations > 0);
  CHECK(three.instantiations == two.instantiations);
  CHECK(three.launches > two.launches);
}

TEST_CASE("cuda graphs: a loss that is not finite and memory that does not suffice are told as without", "[training]") {
  const ScratchDirectory scratch;
  for (const std::string flags : {"--lr 1e6 --weight-decay 0.9 --update fused", "--lr 1e6 --weight-decay 0.9"}) {
    INFO(flags);
    const Course plain = train(scratch, tiny(scratch, true), flags, false), graphs = train(scratch, tiny(scratch, true), flags, true);
    CHECK_THAT(plain.error, Catch::StartsWith("step 2: the gradient of parameter"));  // the first step is not captured
    CHECK(graphs.error == plain.error);
    CHECK(graphs.losses == plain.losses);
  }
  Config config = tiny(scratch, true);
  config.memory_limit = {100'000};
  const Course plain = train(scratch, config, "", false), graphs = train(scratch, config, "", true);
  CHECK_THAT(plain.error, Catch::Contains("out of memory"));
  CHECK(graphs.error == plain.error);
}
