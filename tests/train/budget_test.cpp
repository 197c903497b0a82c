// Budgets: the dynamic program against brute force, regions as text, and that what is chosen stays within its bytes, planned and
// measured.
#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/budget/block_parts.h>
#include <refrain/train/budget/budget.h>
#include <refrain/train/budget/chain_budget.h>
#include <refrain/train/budget/fit.h>
#include <refrain/train/run.h>
#include <refrain/train/setup.h>

#include <cstdio>
#include <map>
#include <random>
#include <set>

using namespace refrain;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;
using Catch::Contains;

namespace {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t bound) { return std::int64_t(random_() % std::uint64_t(bound)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T of(std::initializer_list<T> values) { return *(values.begin() + below(std::int64_t(values.size()))); }

 private:
  std::mt19937_64 random_;
};

struct RandomChain {
  std::size_t num_stages;
  std::vector<ChainChoice> choices;
};

// Up to 12 stages with one to four options each, and some groups. Half of the chains repeat one stage, as models do.
RandomChain random_chain(Dice& dice) {
  RandomChain chain{std::size_t(1 + dice.below(12)), {}};
  const std::int64_t scale = dice.of<std::int64_t>({4, 40, 4000});
  const auto option = [&](std::size_t begin, std::size_t end) {
    return ChainChoice{begin, end, dice.below(scale), dice.below(3 * scale), dice.below(scale)};
  };
  const bool is_repeated = dice.chance(50);
  std::vector<ChainChoice> first;
  for (std::size_t i = 0; i < chain.num_stages; ++i) {
    if (i == 0 || !is_repeated) {
      first.clear();
      for (std::int64_t k = 0, count = 1 + dice.below(4); k < count; ++k) first.push_back(option(i, i + 1));
    }
    for (ChainChoice choice : first) {
      choice.begin = i;
      choice.end = i + 1;
      chain.choices.push_back(choice);
    }
  }
  for (std::int64_t k = 0, count = dice.below(8); k < count; ++k) {
    const std::size_t begin = std::size_t(dice.below(std::int64_t(chain.num_stages)));
    chain.choices.push_back(option(begin, begin + 1 + std::size_t(dice.below(std::int64_t(chain.num_stages - begin)))));
  }
  for (std::size_t i = chain.choices.size(); i > 1; --i)
    std::swap(chain.choices[i - 1], chain.choices[std::size_t(dice.below(std::int64_t(i)))]);
  return chain;
}

// The lowest cost for each peak that any cover has, by trying all covers.
class BruteForce {
 public:
  explicit BruteForce(const RandomChain& chain) : chain_(chain), beginning_(chain.num_stages) {
    for (const ChainChoice& choice : chain.choices) beginning_[choice.begin].push_back(choice);
    walk(0, 0, 0, 0);
  }
  // -1: nothing is within.
  std::int64_t least_cost(std::int64_t budget) const {
    std::int64_t least = -1;
    for (const auto& [peak, cost] : cost_of_peak) {
      if (peak <= budget && (least < 0 || cost < least)) least = cost;
    }
    return least;
  }
  // Cheapest first.
  std::vector<std::pair<std::int64_t, std::int64_t>> front() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> list;
    std::int64_t least = -1;
    for (const auto& [peak, cost] : cost_of_peak) {
      if (least >= 0 && cost >= least) continue;
      least = cost;
      list.insert(list.begin(), {peak, cost});
    }
    return list;
  }
  std::map<std::int64_t, std::int64_t> cost_of_peak;

 private:
  void walk(std::size_t at, std::int64_t kept, std::int64_t peak, std::int64_t cost) {
    if (at == chain_.num_stages) {
      const auto [found, is_new] = cost_of_peak.emplace(peak, cost);
      if (!is_new) found->second = std::min(found->second, cost);
      return;
    }
    for (const ChainChoice& choice : beginning_[at])
      walk(choice.end, kept + choice.kept, std::max(peak, kept + choice.peak), cost + choice.cost);
  }
  const RandomChain& chain_;
  std::vector<std::vector<ChainChoice>> beginning_;
};

// Peak and cost as the choices say, in order, covering the chain.
void check_solution(const RandomChain& chain, const ChainSolution& solution) {
  std::size_t at = 0;
  std::int64_t kept = 0, peak = 0, cost = 0;
  for (const std::size_t i : solution.choices) {
    REQUIRE(chain.choices[i].begin == at);
    at = chain.choices[i].end;
    peak = std::max(peak, kept + chain.choices[i].peak);
    kept += chain.choices[i].kept;
    cost += chain.choices[i].cost;
  }
  REQUIRE(at == chain.num_stages);
  REQUIRE(peak == solution.peak);
  REQUIRE(cost == solution.cost);
}

void compare_with_brute_force(std::uint32_t seed) {
  INFO("chain " << seed);
  Dice dice(seed);
  const RandomChain chain = random_chain(dice);
  const BruteForce brute(chain);
  const std::int64_t highest = brute.cost_of_peak.rbegin()->first;
  for (int i = 0; i < 6; ++i) {
    const std::int64_t budget = i == 0 ? highest : dice.below(highest + 2);
    const auto solution = cheapest_within(chain.num_stages, chain.choices, budget);
    const std::int64_t least = brute.least_cost(budget);
    REQUIRE(solution.has_value() == (least >= 0));
    if (!solution) continue;
    check_solution(chain, *solution);
    REQUIRE(solution->peak <= budget);
    REQUIRE(solution->cost == least);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> front;
  for (const ChainSolution& solution : pareto_front(chain.num_stages, chain.choices)) {
    check_solution(chain, solution);
    front.emplace_back(solution.peak, solution.cost);
  }
  REQUIRE(front == brute.front());
  const auto thinned = pareto_front(chain.num_stages, chain.choices, 5);
  REQUIRE(thinned.size() <= 7);
  REQUIRE(thinned.back().peak == front.back().first);
  REQUIRE(thinned.front().cost == front.front().second);
}

// A tiny training with random shape, batch, optimizer, precision, schedule and update.
Config random_config(Dice& dice, const ScratchDirectory& scratch) {
  Config config;
  if (dice.chance(30)) {
    config.model = "gpt2";
    config.data_format = "text";
    config.data_path = scratch / "text";
    config.context = dice.of<std::int64_t>({5, 12, 16});
  } else {
    config.data_path = scratch / "data";
    config.patch_size = dice.of<std::int64_t>({2, 4, 8});
  }
  config.num_heads = dice.of<std::int64_t>({1, 2, 4});
  config.width = config.num_heads * dice.of<std::int64_t>({4, 8, 12});
  config.depth = 1 + dice.below(dice.chance(10) ? 9 : 3);
  config.mlp_ratio = dice.of({1.0, 2.0, 4.0});
  config.dropout = dice.chance(30) ? 0.1 : 0;
  config.batch = 1 + dice.below(12);
  config.accumulate = dice.of<std::int64_t>({1, 1, 2, 3, 5});
  config.eval_batch = dice.chance(30) ? 1 + dice.below(12) : 0;
  config.epochs = 1;
  config.lr = 0.01;
  config.optimizer = dice.of({"sgd", "adamw"});
  config.momentum = config.optimizer == "sgd" && dice.chance(50) ? 0.9 : 0;
  config.precision = dice.of({"32-true", "32-true", "bf16-mixed", "bf16-true"});
  config.clip_norm = dice.chance(30) ? 1 : 0;
  config.update = dice.of({"after", "fused"});
  config.accumulate_schedule = dice.of({"ordinary", "ordinary", "layerwise"});
  config.snapshot_every = 0;
  config.threads = 1;
  config.seed = dice.below(1000);
  if (config.update == "fused" && config.accumulate_schedule == "ordinary") config.clip_norm = 0;
  check_config(config);
  return config;
}

void write_data(const ScratchDirectory& scratch) {
  write_images(scratch);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog. "[(i * 7 + i / 45) % 45];
  scratch.write("text", text);
}

Config with_budget(Config config, std::int64_t bytes) {
  config.checkpoint = "budget";
  config.memory_budget.value = bytes;
  return config;
}

struct Tally {
  int chosen = 0, refused = 0;
  double closest = 0;  // peak over budget
};

// Budgets between the least there is and what no checkpoints take, and one below the least. Lower ones never give higher peaks.
Tally check_budgets(Dice& dice, const Config& config, bool is_measured, const ScratchDirectory& scratch, int number) {
  Tally tally;
  const std::int64_t most = planned_cost(config).bytes;
  std::int64_t least = 0;
  try {
    choose_budget(with_budget(config, 1));
    FAIL("a byte was enough");
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    const std::size_t at = text.find("the least is ");
    REQUIRE(at != std::string::npos);
    least = std::stoll(text.substr(at + 13));
    ++tally.refused;
  }
  REQUIRE(least <= most);
  std::int64_t last_bytes = 0;
  const std::int64_t middle = least + dice.below(most - least + 1);
  for (const std::int64_t budget : std::set<std::int64_t>{least, middle, most}) {
    INFO("budget " << budget << " between " << least << " and " << most);
    const BudgetChoice choice = choose_budget(with_budget(config, budget));
    const Plan plan = plan_training(choice.config, {.work = false});
    REQUIRE(plan.reserved_bytes == choice.planned.bytes);
    REQUIRE(plan.reserved_bytes <= budget);
    REQUIRE(plan.reserved_bytes >= last_bytes);
    last_bytes = plan.reserved_bytes;
    tally.closest = std::max(tally.closest, double(plan.reserved_bytes) / double(budget));
    ++tally.chosen;
    if (!is_measured || budget != middle) continue;
    Config run = with_budget(config, budget);
    run.run_dir = scratch / ("run-" + std::to_string(number));
    run.memory_limit.value = budget;  // the arena itself refuses a byte more
    const Device device = Device::new_cpu();
    run_training(run, {.device = device});
    REQUIRE(device.reserved_bytes() == choice.planned.bytes);
  }
  return tally;
}

// Of `count` random configurations; every `measured_every`-th is trained as well.
void check_random_configs(std::uint32_t seed, int count, int measured_every, bool is_told) {
  const ScratchDirectory scratch;
  write_data(scratch);
  Tally sum;
  int measured = 0;
  for (int i = 0; i < count; ++i) {
    INFO("seed " << seed + std::uint32_t(i));
    Dice dice(seed + std::uint32_t(i));
    const bool is_measured = i % measured_every == 0;
    const Tally tally = check_budgets(dice, random_config(dice, scratch), is_measured, scratch, i);
    measured += is_measured;
    sum.chosen += tally.chosen;
    sum.refused += tally.refused;
    sum.closest = std::max(sum.closest, tally.closest);
    if (is_told && (i + 1) % 500 == 0) std::fprintf(stderr, "budgets: %d of %d configurations\n", i + 1, count);
  }
  CHECK(sum.chosen > 0);
  CHECK(sum.refused > 0);
  if (is_told)
    std::printf("budgets: seeds %u to %u, %d configurations, %d budgets within, %d refused, %d trained; largest peak / budget %.9f\n", seed,
                seed + std::uint32_t(count) - 1, count, sum.chosen, sum.refused, measured, sum.closest);
}

// For every candidate of `count` random configurations.
void check_bounds(std::uint32_t first_seed, std::uint32_t count) {
  const ScratchDirectory scratch;
  write_data(scratch);
  double closest = 0;
  for (std::uint32_t seed = first_seed; seed < first_seed + count; ++seed) {
    Dice dice(seed);
    Config config = random_config(dice, scratch);
    config.max_steps = dice.chance(30) ? 1 : 0;
    if (dice.chance(20)) config.batch = 60 + dice.below(80);  // micro-batches that are short, or the only one
    std::vector<CheckpointCandidate> candidates = checkpoint_candidates(config);
    const std::vector<CheckpointCandidate> uniform = uniform_candidates(config);
    candidates.insert(candidates.end(), uniform.begin(), uniform.end());
    const TensorBytes first = tensor_bytes(candidates[0].in(config));
    for (const CheckpointCandidate& candidate : candidates) {
      INFO("seed " << seed << ", " << candidate.text() << "\n" << to_toml(config));
      const TensorBytes planned = tensor_bytes(candidate.in(config));
      CHECK(planned.parameters == first.parameters);
      CHECK(planned.inputs == first.inputs);
      CHECK(least_possible(first, config, candidate) <= planned.peak);
      closest = std::max(closest, double(least_possible(first, config, candidate)) / double(planned.peak));
    }
    CHECK(first.peak <= planned_cost(candidates[0].in(config)).bytes);
    // Of any cut: parameters and their optimizer state, and gradients where the update waits for all.
    config.batch = 1;
    config.accumulate = 3;
    CHECK(tensor_bytes(config).parameters == first.parameters);
    if (config.accumulate_schedule == "ordinary" && config.update == "after")
      CHECK(first.parameters + first.gradients <= tensor_bytes(config).peak);
  }
  CHECK(closest > 0.8);  // it is close enough to rule out anything
}

}  // namespace

TEST_CASE("budget: the dynamic program equals brute force on 5000 random chains of up to 12 stages", "[sweep]") {
  int compared = 0;
  for (std::uint32_t seed = 0; compared < 5000; ++seed) {
    Dice dice(seed);
    // Brute force goes through all covers: of chains with very many only some are tried.
    const RandomChain chain = random_chain(dice);
    double covers = 1;
    for (std::size_t i = 0; i < chain.num_stages; ++i) {
      double options = 0;
      for (const ChainChoice& c : chain.choices) options += c.begin == i ? 1 : 0;
      covers *= options;
    }
    if (covers >= 100000 && seed % 100 != 0) continue;
    compare_with_brute_force(seed);
    ++compared;
  }
}

TEST_CASE("budget: chains that cannot be covered have no solution, and bad choices are refused") {
  CHECK(!cheapest_within(2, std::vector<ChainChoice>{{0, 1, 1, 1, 1}}, 100).has_value());
  CHECK(pareto_front(2, std::vector<ChainChoice>{{0, 1, 1, 1, 1}}, 4).empty());
  CHECK(cheapest_within(0, {}, 0)->cost == 0);
  CHECK_THROWS_AS(cheapest_within(1, std::vector<ChainChoice>{{0, 2, 1, 1, 1}}, 100), InvalidArgument);
  CHECK_THROWS_AS(cheapest_within(1, std::vector<ChainChoice>{{0, 0, 1, 1, 1}}, 100), InvalidArgument);
  CHECK_THROWS_AS(cheapest_within(1, std::vector<ChainChoice>{{0, 1, -1, 1, 1}}, 100), InvalidArgument);
}

TEST_CASE("budget: parts of blocks are read as they are written, and refused where they make no sense") {
  for (const char* line : {"0-3 none", "4 none", "4-11 block", "0 block keep attention", "4-11 block keep matmul attention",
                           "12-23 group 4", "12-23 group 4 block", "1-2 group 2 block keep attention add"})
    CHECK(to_text(parse_block_part(line)) == line);
  for (const char* line : {"", "none", "0-3", "3-1 none", "a-b none", "0-3 none keep x", "0-3 keep x", "0-3 group", "0-3 group 0",
                           "0-3 group x block", "0-3 block keep", "0-3 group 2 keep x", "0-3 blocks", "-1 none"})
    CHECK_THROWS_AS(parse_block_part(line), InvalidArgument);

  Config config;
  config.patch_size = 7;
  config.image_size = 28;
  config.channels = 1;
  config.num_classes = 10;
  config.depth = 8;
  const auto model = build_model(config, Device::plan());
  const auto policy = [&](std::vector<std::string> parts) {
    Config custom = config;
    custom.checkpoint = "custom";
    custom.checkpoint_parts = std::move(parts);
    return partition(checkpoint_policy(custom, *model), model->stages());
  };
  CHECK(policy({"0-7 block"}) == partition({.kind = CheckpointKind::block}, model->stages()));
  CHECK(policy({"0-7 group 3 block"}) == partition({.kind = CheckpointKind::nested, .levels = 2}, model->stages()));
  CHECK(policy({}) == partition({}, model->stages()));
  CHECK(policy({"0-1 block", "2-7 none"}) == policy({"0-1 block"}));
  CHECK_THROWS_WITH(policy({"0-8 block"}), Contains("there are 8 blocks"));
  CHECK_THROWS_WITH(policy({"2-3 block", "0 none"}), Contains("out of order"));
}

TEST_CASE("budget: 20 random configurations stay within theirs as planned, and 4 of them as trained", "[sweep]") {
  check_random_configs(50000, 20, 5, false);
}

TEST_CASE("budget: 10000 random configurations planned, 100 of them trained", "[.budget]") {
  check_random_configs(100000, 10000, 100, true);
}

TEST_CASE("budget: what rules candidates out before they are planned is no more than they take") { check_bounds(300, 12); }

TEST_CASE("budget: the same of 500 configurations", "[.bounds]") { check_bounds(10000, 500); }

TEST_CASE("budget: lower budgets never give higher peaks, and higher ones never more work") {
  const ScratchDirectory scratch;
  write_data(scratch);
  Dice dice(7);
  for (int i = 0; i < 4; ++i) {
    Config config = random_config(dice, scratch);
    config.depth = 6;
    const std::int64_t most = planned_cost(config).bytes;
    std::int64_t bytes = most;
    std::int64_t replayed = 0;
    for (int share = 100; share > 0; share -= 2) {
      try {
        const BudgetChoice choice = choose_budget(with_budget(config, most / 100 * share));
        CHECK(choice.planned.bytes <= most / 100 * share);
        CHECK(choice.planned.bytes <= bytes);
        bytes = choice.planned.bytes;
        if (choice.chosen.checkpoint == "nested") continue;  // whose estimate is not known
        CHECK(choice.chosen.replayed_flops >= replayed);
        replayed = choice.chosen.replayed_flops;
      } catch (const OutOfMemory&) {
        break;
      }
    }
  }
}

TEST_CASE("budget: a run writes down its budget, and a resume chooses the same") {
  const ScratchDirectory scratch;
  write_data(scratch);
  Config config;
  config.data_path = scratch / "data";
  config.patch_size = 2;
  config.width = 16;
  config.depth = 6;
  config.num_heads = 2;
  config.batch = 8;
  config.max_steps = 4;
  config.run_dir = scratch / "run";
  const std::int64_t most = planned_cost(config).bytes;
  config = with_budget(config, most * 3 / 4);
  std::vector<std::string> notes;
  int steps = 0;
  RunHooks hooks;
  hooks.on_note = [&](const std::string& note) { notes.push_back(note); };
  hooks.should_stop = [&] { return ++steps == 2; };
  const Device first = Device::new_cpu();
  CHECK(!run_training(config, {.device = first}, hooks).is_finished);
  REQUIRE(notes.size() >= 1);
  CHECK_THAT(notes[0], Contains("memory budget") && Contains("extra FLOPs"));
  const Config written = load_config(scratch / "run/config.toml", {});
  CHECK(written.checkpoint == "budget");
  CHECK(written.checkpoint_parts.empty());
  CHECK(written.memory_budget.value == config.memory_budget.value);
  const std::string note = notes[0];
  notes.clear();
  const Device second = Device::new_cpu();
  CHECK(run_training(written, {.resume = true, .device = second}, hooks).is_finished);
  CHECK(notes[0] == note);
  CHECK(second.reserved_bytes() <= config.memory_budget.value);
  CHECK(run_evaluation(written).samples > 0);
}

TEST_CASE("budget: an OutOfMemory names what would fit, or the least there is, and training goes on with it") {
  const ScratchDirectory scratch;
  write_data(scratch);
  Config config;
  config.data_path = scratch / "data";
  config.patch_size = 2;
  config.width = 16;
  config.depth = 4;
  config.num_heads = 2;
  config.batch = 8;
  config.max_steps = 2;
  const std::int64_t most = planned_cost(config).bytes;
  config.memory_limit.value = most * 2 / 3;
  config.run_dir = scratch / "too-much";
  const Device device = Device::new_cpu();
  try {
    run_training(config, {.device = device});
    FAIL("it fitted");
  } catch (const OutOfMemory& error) {
    CHECK_THAT(error.what(), Contains("asked for") && Contains("--checkpoint ") && Contains(" would take "));
    CHECK(error.limit == config.memory_limit.value);
  }
  config.memory_limit.value = 100000;
  config.run_dir = scratch / "hopeless";
  CHECK_THROWS_WITH(run_training(config, {.device = Device::new_cpu()}), Contains("nothing fits; the least is what "));
}

TEST_CASE("fit: what is found is within the bytes, and keeps the batch of a step") {
  const ScratchDirectory scratch;
  write_data(scratch);
  Dice dice(11);
  for (int i = 0; i < 3; ++i) {
    const Config config = random_config(dice, scratch);
    const std::int64_t most = planned_cost(config).bytes;
    const Fit fit = fit_training(config, most * 3 / 4);
    INFO(to_toml(config));
    CHECK(fit.entries.empty() == fit.least.has_value());
    for (const FitEntry& entry : fit.entries) {
      CHECK(entry.planned.bytes <= most * 3 / 4);
      CHECK(plan_training(entry.config).reserved_bytes == entry.planned.bytes);
      CHECK(entry.config.batch * entry.config.accumulate == config.batch * config.accumulate);
      CHECK(entry.config.precision == config.precision);
    }
    const Fit none = fit_training(config, 1000, {.batch = false, .update = false, .schedule = false});
    REQUIRE(none.entries.empty());
    CHECK(none.least->planned.bytes > 1000);
    CHECK(none.least->config.batch == config.batch);
  }
}
