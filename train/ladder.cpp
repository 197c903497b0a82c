// The rungs and columns as data, and their plans.
#include <refrain/train/ladder.h>

#include <refrain/core/check.h>
#include <refrain/core/memory/layout.h>
#include <refrain/data/samples.h>
#include <refrain/train/budget/budget.h>
#include <refrain/train/clock.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/plan.h>
#include <refrain/train/program.h>
#include <refrain/train/setup.h>
#include <refrain/train/strategy.h>
#include <refrain/train/two_at_a_time.h>

#include <algorithm>
#include <functional>
#include <future>
#include <sstream>

namespace refrain {

namespace {

// Evaluations by 4 images at a time: the article's peak is the training's. As many samples as it has.
constexpr const char* kCommon = "--preset vit_l_16 --image-size 224 --channels 3 --num-classes 10 --eval-batch 4";
constexpr std::int64_t kNumTrain = 45000, kNumTest = 10000;

struct Targets {
  double a = 0, b = 0, c = 0, d = 0;
};
struct Rung {
  const char* name;
  std::vector<double> published_gb;
  const char* precision;
  const char* flags;     // of the optimizer, and of what is split or elsewhere
  std::int64_t samples;  // a rank's, of an optimizer step
  std::int64_t batch;    // a micro-batch, in the ordinary order
  Targets targets;
  int world_size = 1;
  const char* plain = "";           // flags of the first column
  const char* streamed = "all";     // what column D has in host memory
};
constexpr const char* kAdam = "--optimizer adam --lr 5e-5";
const std::vector<Rung>& rungs() {
  static const std::vector<Rung> list{
      {"fp32 Adam b64", {26.84}, "32-true", kAdam, 64, 64, {16.40, 5.18, 4.25, 0.55}},
      {"16-mixed b64", {18.21}, "16-mixed", kAdam, 64, 64, {12.53, 5.12, 4.02, 0.48}},
      {"bf16-true b64", {13.82}, "bf16-true", kAdam, 64, 64, {8.23, 2.61, 2.13, 0.28}},
      {"b16", {5.69}, "bf16-true", kAdam, 16, 16, {3.47, 2.06, 1.93, 0.22}},
      {"micro-batch 4 x 4", {3.91}, "bf16-true", kAdam, 16, 4, {2.86, 2.06, 1.92, 0.21}},
      {"+ SGD", {2.02}, "bf16-true", "--optimizer sgd --lr 0.01", 16, 4, {1.64, 0.85, 0.71, 0.10}},
      {"load", {1.24, 0.65}, "bf16-true", "", 0, 0, {0.609, 0, 0, 0.05}},
      // Of 4 GPUs, each with 64 images a step.
      {"sharded x4 + checkpoint", {6.59}, "32-true", "--optimizer adam --lr 5e-5 --strategy sharded", 64, 64, {0, 2.57, 1.64, 1.27}, 4,
       "--checkpoint block", "boundaries"},
      {"+ offload", {6.03}, "32-true", "--optimizer adam --lr 5e-5 --strategy sharded", 64, 64, {0, 1.66, 0.73, 0.36}, 4,
       "--checkpoint block --offload parameters", "all"},
  };
  return list;
}

struct Column {
  const char *name, *meaning;
  std::int64_t micro_batches;  // a step; 0: as the rung has them
  const char* flags;
  const char* for_16_mixed;  // precision of this column on the rung in 16-mixed
  double Targets::*target;
};
// A dynamic loss scale needs all gradients before the first update, which A does not keep. C's arithmetic is of bf16.
constexpr const char *kDynamic = "--precision 16-mixed", *kStatic = "--precision 16-mixed --loss-scale static",
                     *kBf16 = "--precision bf16-mixed --non-finite stop";
const std::vector<Column>& columns() {
  static const std::vector<Column> list{
      {"plain", "the rung as it stands: ordinary order, update after backward, nothing replayed", 0, "", kDynamic, nullptr},
      {"A", "fused: each parameter updated in backward, its gradient freed at once", 0, "--update fused", kStatic, &Targets::a},
      {"layerwise", "A with 4 micro-batches that pass the model layer by layer, nothing replayed", 4,
       "--update fused --accumulate-schedule layerwise", kDynamic, nullptr},
      {"B", "layerwise with a checkpoint per block", 4, "--update fused --accumulate-schedule layerwise --checkpoint block", kDynamic,
       &Targets::b},
      {"C", "16 micro-batches, checkpoints on two levels", 16,
       "--update fused --accumulate-schedule layerwise --checkpoint nested --checkpoint-levels 2", kBf16, &Targets::c},
      {"D", "C with parameters, optimizer state and what checkpoints begin with in host memory (sharded x4: the last alone)", 16,
       "--update fused --accumulate-schedule layerwise --checkpoint nested --checkpoint-levels 2", kBf16, &Targets::d},
      {"budget", "A told to take no more than A less half of its saved activations: the cheapest checkpoints are chosen", 0,
       "--update fused --checkpoint budget", kStatic, nullptr},
  };
  return list;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> list;
  for (std::string word; in >> word;) list.push_back(word);
  return list;
}

std::string precision_flags(const Rung& rung, const Column& column) {
  return rung.precision == std::string("16-mixed") ? column.for_16_mixed : concat("--precision ", rung.precision);
}

std::string flags_of(const Rung& rung, const Column& column) {
  const std::int64_t micro_batches = column.micro_batches > 0 ? column.micro_batches : rung.samples / rung.batch;
  std::string more = column.flags;
  if (column.name == std::string("plain")) more = rung.plain;
  else if (column.name == std::string("D")) more += concat(" --offload ", rung.streamed);
  else if (rung.name == std::string("+ offload")) more += " --offload parameters";
  return concat(kCommon, " ", precision_flags(rung, column), " ", rung.flags, " ", more, " --batch ", rung.samples / micro_batches,
                " --accumulate ", micro_batches);
}

// The article's sharded rungs have checkpoints from the start.
bool has_column(const Rung& rung, const Column& column) {
  const std::string name = column.name;
  return rung.world_size == 1 || (name != "A" && name != "layerwise" && name != "budget");
}

void plan_entry(LadderEntry& entry) {
  try {
    const PlanOptions options{
        .num_train = kNumTrain, .num_test = kNumTest, .is_packed = entry.column == "budget", .world_size = entry.world_size};
    const BudgetChoice choice = choose_budget(ladder_config(entry), options);  // as it is, without a budget
    const Plan plan = plan_training(choice.config, options);
    entry.note = choice.note;
    entry.peak_bytes = plan.ledger.peak_bytes();
    entry.input_bytes = plan.ledger.kinds_at_peak()[std::size_t(MemoryKind::input)];
    entry.saved_bytes = plan.ledger.kinds_at_peak()[std::size_t(MemoryKind::saved)];
    entry.reserved_bytes = plan.reserved_bytes;
    entry.host_bytes = plan.host.peak_bytes();
    entry.step_flops = plan.step.total.flops;
  } catch (const InvalidArgument& error) {
    entry.missing = error.what();
  } catch (const OutOfMemory& error) {  // of a budget that nothing is within
    entry.missing = error.what();
  }
}

// The model's weights made where and in the dtype they are to be: no copy on the way.
void plan_load(LadderEntry& entry) {
  const Config config = ladder_config(entry);
  const Device device = plan_device(config);
  const std::unique_ptr<NewbornPieces> newborn = newborn_pieces(config, device, 0, 1);
  const std::shared_ptr<ChainModel> model = std::async(std::launch::async, [&] { return build_model(config, device, newborn.get()); }).get();
  entry.peak_bytes = device.ledger().peak_bytes();
  entry.reserved_bytes = device.reserved_bytes();
}

// Images and labels by formula: what they show does not matter to memory.
class MadeUpImages : public Samples {
 public:
  MadeUpImages(const Config& config, std::int64_t size)
      : shape_{config.channels, config.image_size, config.image_size}, classes_(config.num_classes), size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return shape_; }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return classes_; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    float* pixels = reinterpret_cast<float*>(input);
    for (std::int64_t i = 0; i < numel_of(shape_); ++i) pixels[i] = float((i * 31 + index * 17) % 255) / 127.5f - 1;
    *target = index % classes_;
  }

 private:
  Shape shape_;
  std::int64_t classes_, size_;
};

}  // namespace

const LadderEntry* LadderRung::find(const std::string& column) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const LadderEntry& entry) { return entry.column == column; });
  return found == entries.end() ? nullptr : &*found;
}

const std::vector<LadderColumn>& ladder_columns() {
  static const std::vector<LadderColumn> list = [] {
    std::vector<LadderColumn> made;
    for (const Column& column : columns()) made.push_back({column.name, column.meaning});
    return made;
  }();
  return list;
}

Config ladder_config(const LadderEntry& entry) { return load_config("", entry.flags); }

std::vector<LadderRung> plan_ladder(const std::string& only, const std::string& device) {
  check_device_word(device);
  std::vector<LadderRung> ladder;
  for (const Rung& rung : rungs()) {
    if (!only.empty() && only != rung.name) continue;
    LadderRung made{rung.name, rung.published_gb, {}};
    for (const Column& column : columns()) {
      const double target = column.target ? rung.targets.*column.target : 0;
      const std::string name = column.name;
      if (rung.samples > 0 && has_column(rung, column))
        made.entries.push_back({name, words(flags_of(rung, column)), target, rung.world_size});
      else if (rung.samples == 0 && (name == "A" || name == "D"))
        made.entries.push_back(
            {name, words(concat(kCommon, " ", precision_flags(rung, column), name == "D" ? " --offload parameters" : "")), target, 1});
    }
    for (LadderEntry& entry : made.entries) entry.flags.insert(entry.flags.end(), {"--device", device});
    ladder.push_back(std::move(made));
  }
  if (ladder.empty()) {
    std::string known;
    for (const Rung& rung : rungs()) known += concat(known.empty() ? "'" : ", '", rung.name, "'");
    fail("ladder: expected one of ", known, ", got '", only, "'");
  }

  std::vector<std::function<void()>> tasks;
  for (LadderRung& rung : ladder) {
    for (LadderEntry& entry : rung.entries) {
      if (entry.column == "budget") continue;
      if (rung.name == "load")
        tasks.push_back([&entry] { plan_load(entry); });
      else
        tasks.push_back([&entry] { plan_entry(entry); });
    }
  }
  for_each_two_at_a_time(tasks.size(), [&](std::size_t i) { tasks[i](); });

  // A budget is said in bytes that a first plan has found.
  tasks.clear();
  for (LadderRung& rung : ladder) {
    for (LadderEntry& entry : rung.entries) {
      if (entry.column != "budget") continue;
      const LadderEntry& fused = *rung.find("A");
      entry.flags.insert(entry.flags.end(), {"--memory-budget", std::to_string(fused.reserved_bytes - fused.saved_bytes / 2)});
      tasks.push_back([&entry] { plan_entry(entry); });
    }
  }
  for_each_two_at_a_time(tasks.size(), [&](std::size_t i) { tasks[i](); });
  for (LadderRung& rung : ladder)
    for (LadderEntry& entry : rung.entries)
      if (rung.entries[0].step_flops > 0) entry.extra_flops_share = entry.step_flops / rung.entries[0].step_flops - 1;
  return ladder;
}

LadderRun run_ladder_entry(const Config& given, std::int64_t steps) {
  Config config = given;
  config.epochs = 0;
  config.max_steps = steps;
  config.eval_every = 0;
  const std::int64_t num_train = steps * config.batch * config.accumulate, num_test = std::max<std::int64_t>(1, config.eval_batch);
  const PlanOptions options{.num_train = num_train, .num_test = num_test};
  config = choose_budget(config, options).config;
  const Plan plan = plan_training(config, options);

  LadderRun run{.steps = steps, .planned_peak_bytes = plan.ledger.peak_bytes(), .planned_reserved_bytes = plan.reserved_bytes};
  const double begin = now();
  std::async(std::launch::async,
             [&] {  // on a thread with a context of its own, as the plan
               const Device device = new_device(config);
               if (plan.layout) device.set_placement(follow(plan.layout));
               Program program(config, std::make_shared<MadeUpImages>(config, num_train), std::make_shared<MadeUpImages>(config, num_test),
                               device);
               for (std::int64_t i = 0; i < steps; ++i) run.last_loss = program.trainer->step().value().loss;
               program.evaluate();
               run.measured_peak_bytes = device.ledger().peak_bytes();
               run.measured_reserved_bytes = device.reserved_bytes();
             })
      .get();
  run.seconds = now() - begin;
  return run;
}

}  // namespace refrain
