// Remedies: every number is that of a plan of the configuration with the flags typed behind it.
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/remedies.h>

using namespace refrain;
using namespace refrain::testing;
using Catch::Contains;

namespace {

struct Explained {
  Plan plan;
  Receipt receipt;
  Remedies remedies;
};

Explained explain(const Config& config) {
  Explained out{plan_training(config, {.timeline = true}), {}, {}};
  out.receipt = make_receipt(*out.plan.timeline, out.plan.ledger.peak_bytes());
  out.remedies = plan_remedies(config, {}, out.plan, out.receipt);
  return out;
}

const Remedy* find(const Remedies& remedies, const std::string& flags) {
  for (const Remedy& remedy : remedies.single)
    if (remedy.flags_text() == flags) return &remedy;
  return nullptr;
}

void check_numbers(const ScratchDirectory& scratch, const Config& config) {
  const Explained explained = explain(config);
  scratch.write("config.toml", to_toml(config));
  std::vector<Remedy> all = explained.remedies.single;
  all.insert(all.end(), explained.remedies.combined.begin(), explained.remedies.combined.end());
  REQUIRE(all.size() > 3);
  for (const Remedy& remedy : all) {
    INFO(remedy.name << ": " << remedy.flags_text());
    const Plan fresh = plan_training(load_config(scratch / "config.toml", remedy.flags));
    CHECK(remedy.peak_bytes == fresh.ledger.peak_bytes());
    CHECK(remedy.reserved_bytes == fresh.reserved_bytes);
    CHECK(remedy.saved_bytes == explained.plan.ledger.peak_bytes() - fresh.ledger.peak_bytes());
    CHECK(remedy.extra_flops_share == fresh.run.total.flops / explained.plan.run.total.flops - 1);
    std::vector<std::int64_t> groups = explained.receipt.sorting.bytes(fresh.ledger.entries_at_peak());
    groups.resize(explained.receipt.groups.size());
    CHECK(remedy.group_bytes == groups);
  }
  for (std::size_t group = 0; group < explained.receipt.groups.size(); ++group) {
    for (const Remedy* remedy : explained.remedies.of_group(explained.receipt, group)) {
      CHECK(remedy->group_bytes[group] < explained.receipt.groups[group].bytes);
      CHECK(remedy->peak_bytes <= explained.receipt.peak_bytes);
    }
  }
}

}  // namespace

TEST_CASE("remedies: every number is that of a fresh plan with the flags over the file") {
  const ScratchDirectory scratch;
  Config vit = small_vit(scratch);
  vit.depth = 8;
  vit.optimizer = "adamw";
  check_numbers(scratch, vit);
  Config gpt2 = small_gpt2(scratch);
  gpt2.momentum = 0.9;
  gpt2.nesterov = true;
  gpt2.clip_norm = 1;
  gpt2.checkpoint = "selective";
  gpt2.checkpoint_keep = {"matmul"};
  check_numbers(scratch, gpt2);
}

TEST_CASE("remedies: what applies is offered with its effect, what does not is not") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.optimizer = "adamw";
  const Explained plain = explain(config);
  REQUIRE(find(plain.remedies, "--checkpoint block") != nullptr);
  CHECK(find(plain.remedies, "--checkpoint block")->effect == RemedyEffect::same_bits);
  CHECK(find(plain.remedies, "--checkpoint block")->extra_flops_share > 0);
  REQUIRE(find(plain.remedies, "--batch 4 --accumulate 2") != nullptr);
  CHECK(find(plain.remedies, "--batch 4 --accumulate 2")->effect == RemedyEffect::rounding);
  REQUIRE(find(plain.remedies, "--optimizer sgd") != nullptr);
  CHECK(find(plain.remedies, "--optimizer sgd")->effect == RemedyEffect::results);
  REQUIRE(find(plain.remedies, "--precision bf16-true") != nullptr);

  config.checkpoint = "block";
  config.precision = "bf16-true";
  config.optimizer = "sgd";
  config.clip_norm = 1;
  config.batch = 7;
  const Explained tight = explain(config);
  for (const char* flags : {"--checkpoint block", "--precision bf16-true", "--optimizer sgd", "--update fused", "--batch 4 --accumulate 2"})
    CHECK(find(tight.remedies, flags) == nullptr);
  for (const Remedy& remedy : tight.remedies.combined) CHECK(remedy.peak_bytes < tight.receipt.peak_bytes);
}

TEST_CASE("remedies: a combination is lower than each remedy alone and keeps what it says") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.depth = 8;
  const Explained explained = explain(config);
  REQUIRE(!explained.remedies.combined.empty());
  for (const Remedy& combined : explained.remedies.combined) {
    CHECK(combined.effect <= RemedyEffect::rounding);
    for (const Remedy& single : explained.remedies.single)
      if (single.effect <= combined.effect) CHECK(combined.peak_bytes <= single.peak_bytes);
  }
  const std::string text = receipt_text(explained.receipt, explained.remedies);
  CHECK_THAT(text, Contains("--checkpoint block") && Contains("same bits") && Contains("Together"));
}
