// Plan = run over the product of everything that shapes memory, for ViT-Ti, ViT-S and a small decoder. The whole product takes
// a while and is hidden: test_train "[.product]". Always run is a part of it in which every pair of values of two options
// meets, with four of ViT-S's blocks.
#include <refrain/tests/support/images.h>
#include <refrain/tests/train/check_plan.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

using namespace refrain;
using refrain::testing::check_plan;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;

namespace {

// An option: what its values do to a configuration.
struct Option {
  std::string name;
  std::vector<void (*)(Config&)> values;
};

const std::vector<Option>& options() {
  static const std::vector<Option> list{
      {"model",
       {[](Config& c) { c.preset = "vit_ti_16"; }, [](Config& c) { c.preset = "vit_s_16"; },
        [](Config& c) {
          c.model = "gpt2";
          c.data_format = "text";
          c.data_path = "text";
          c.context = 24;
          c.width = 64;
          c.depth = 5;
          c.num_heads = 4;
        }}},
      {"precision",
       {[](Config& c) { c.precision = "32-true"; }, [](Config& c) { c.precision = "16-mixed"; },
        [](Config& c) { c.precision = "bf16-mixed"; }, [](Config& c) { c.precision = "16-true"; },
        [](Config& c) { c.precision = "bf16-true"; }}},
      {"checkpoint",
       {[](Config& c) { c.checkpoint = "none"; }, [](Config& c) { c.checkpoint = "block"; }, [](Config& c) { c.checkpoint = "nested"; },
        [](Config& c) {
          c.checkpoint = "selective";
          c.checkpoint_keep = {"attention"};
        }}},
      {"optimizer", {[](Config& c) { c.optimizer = "sgd"; }, [](Config& c) { c.optimizer = "adamw"; }}},
      {"window",
       {[](Config& c) { c.batch = 4; },
        [](Config& c) {
          c.batch = 2;
          c.accumulate = 2;
        },
        [](Config& c) {
          c.batch = 1;
          c.accumulate = 5;
        }}},
      {"schedule",
       {[](Config&) {}, [](Config& c) { c.update = "fused"; }, [](Config& c) { c.accumulate_schedule = "layerwise"; },
        [](Config& c) {
          c.update = "fused";
          c.accumulate_schedule = "layerwise";
        },
        [](Config& c) {  // two backward passes
          c.update = "fused";
          c.accumulate_schedule = "layerwise";
          c.clip_norm = 1;
        }}}};
  return list;
}

// Those that only the part that is always run has.
const std::vector<Option>& more_options() {
  static const std::vector<Option> list = [] {
    std::vector<Option> all = options();
    all.push_back({"packing", {[](Config&) {}, [](Config& c) { c.packing = "online"; }}});
    all.push_back({"loss_chunk", {[](Config&) {}, [](Config& c) { c.loss_chunk = 3; }}});
    all.push_back({"mlp_chunk", {[](Config&) {}, [](Config& c) { c.mlp_chunk = 7; }}});
    all.push_back({"dropout", {[](Config&) {}, [](Config& c) { c.dropout = c.attention_dropout = 0.1; }}});
    all.push_back({"freeze", {[](Config&) {}, [](Config& c) { c.freeze = {"blocks.0.*", "blocks.2.mlp.*"}; }}});
    return all;
  }();
  return list;
}

// 11 training and 3 test samples: the last window of an epoch is short.
void write_data(const ScratchDirectory& scratch) {
  write_images(scratch, 32, 11, 3);
  std::string text;
  for (int i = 0; i < 14 * 25; ++i) text += "the quick brown fox jumps over the lazy dog. "[(i * 7 + i / 45) % 45];
  scratch.write("text", text);
}

Config config_of(const ScratchDirectory& scratch, const std::vector<Option>& list, const std::vector<std::size_t>& row) {
  Config preset;
  list[0].values[row[0]](preset);
  std::vector<std::string> flags;
  if (!preset.preset.empty()) flags = {"--preset", preset.preset};
  Config config = load_config("", flags);
  for (std::size_t i = 0; i < row.size(); ++i) list[i].values[row[i]](config);
  config.data_path = config.data_path == "text" ? scratch / "text" : scratch / "data";
  config.test_share = 0.25;
  config.epochs = 1;
  config.lr = 1e-3;
  config.snapshot_every = 0;
  // The scale's search for its value would leave out steps, and with them their updates.
  config.loss_scale_init = 256;
  if (config.update == "fused" && config.accumulate_schedule == "ordinary" && config.precision == "16-mixed") config.loss_scale = "static";
  return config;
}

using Row = std::vector<std::size_t>;

// Greedy: rows until every pair of values of two options stands in one.
std::vector<Row> rows_of_all_pairs(const std::vector<Option>& list) {
  struct Pair {
    std::size_t i, a, j, b;
    bool operator==(const Pair&) const = default;
    bool is_in(const Row& row) const { return row[i] == a && row[j] == b; }
  };
  std::vector<Pair> missing;
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t j = i + 1; j < list.size(); ++j)
      for (std::size_t a = 0; a < list[i].values.size(); ++a)
        for (std::size_t b = 0; b < list[j].values.size(); ++b) missing.push_back({i, a, j, b});
  std::vector<Row> rows;
  std::uint32_t noise = 1;
  while (!missing.empty()) {
    Row best;
    std::size_t most = 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
      Row row;
      for (const Option& option : list) row.push_back(((noise = noise * 1664525 + 1013904223) >> 16) % option.values.size());
      row[missing[0].i] = missing[0].a;
      row[missing[0].j] = missing[0].b;
      const std::size_t count =
          std::size_t(std::count_if(missing.begin(), missing.end(), [&](const Pair& pair) { return pair.is_in(row); }));
      if (count > most) {
        most = count;
        best = row;
      }
    }
    std::erase_if(missing, [&](const Pair& pair) { return pair.is_in(best); });
    rows.push_back(best);
  }
  return rows;
}

// All precisions, policies, optimizers, windows and schedules of a model.
void check_product(std::size_t model) {
  const ScratchDirectory scratch;
  write_data(scratch);
  Row row(options().size(), 0);
  row[0] = model;
  int count = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 1; i < row.size();) {
    check_plan(scratch, config_of(scratch, options(), row));
    ++count;
    for (i = 1; i < row.size() && ++row[i] == options()[i].values.size(); ++i) row[i] = 0;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("model %zu: %d trainings planned and run in %.0f s\n", model, count, seconds.count());
}

}  // namespace

TEST_CASE("plan: peak and reserved bytes are the run's wherever two options meet") {
  const ScratchDirectory scratch;
  write_data(scratch);
  for (const Row& row : rows_of_all_pairs(more_options())) {
    Config config = config_of(scratch, more_options(), row);
    if (config.preset == "vit_s_16") config.depth = 4;
    check_plan(scratch, config);
  }
}

// One process a model, so that they can run side by side.
TEST_CASE("plan: the whole product for ViT-Ti", "[.product]") { check_product(0); }
TEST_CASE("plan: the whole product for ViT-S", "[.product]") { check_product(1); }
TEST_CASE("plan: the whole product for a decoder", "[.product]") { check_product(2); }
