// Packed offsets of the reference models: how close the arena's length comes to what is alive at the peak.
#include <refrain/tests/support/catch.h>
#include <refrain/train/plan.h>

using namespace refrain;

namespace {

Config reference(const char* preset, const char* checkpoint, int accumulate, const char* optimizer, const char* update) {
  const bool is_text = std::string(preset) == "gpt2";
  std::vector<std::string> flags{"--preset",    preset,        "--checkpoint", checkpoint, "--accumulate", std::to_string(accumulate),
                                 "--optimizer", optimizer,     "--update",     update,     "--batch",      is_text ? "4" : "16",
                                 "--data-path", "/nonexistent"};
  if (!is_text) flags.insert(flags.end(), {"--image-size", "224", "--channels", "3", "--num-classes", "10"});
  return load_config("", flags);
}

void check_packed(const Config& config) {
  INFO(config.preset << ' ' << config.checkpoint << ' ' << config.accumulate << ' ' << config.optimizer << ' ' << config.update);
  const Plan plan = plan_training(config);
  REQUIRE(plan.layout);
  CHECK(plan.reserved_bytes == plan.layout->end);
  CHECK(plan.layout->bound >= plan.ledger.peak_bytes());
  CHECK(double(plan.reserved_bytes) <= 1.02 * double(plan.ledger.peak_bytes()));
}

}  // namespace

TEST_CASE("packing: reserved bytes of the reference models are within 1.02 of the live peak") {
  for (const char* preset : {"vit_ti_16", "vit_s_16", "gpt2"})
    for (const char* checkpoint : {"none", "block", "nested"})
      for (const int accumulate : {1, 4}) check_packed(reference(preset, checkpoint, accumulate, "sgd", "after"));
  check_packed(reference("vit_l_16", "block", 1, "adamw", "fused"));
}

TEST_CASE("packing: the whole product of reference models, policies, windows, optimizers and updates", "[.product]") {
  for (const char* preset : {"vit_ti_16", "vit_s_16", "vit_l_16", "gpt2"})
    for (const char* checkpoint : {"none", "block", "nested"})
      for (const int accumulate : {1, 4})
        for (const char* optimizer : {"sgd", "adamw"})
          for (const char* update : {"after", "fused"}) check_packed(reference(preset, checkpoint, accumulate, optimizer, update));
}

TEST_CASE("packing: left out on request, and with packing = online, the arena chooses") {
  Config config = reference("vit_ti_16", "block", 4, "adamw", "after");
  const Plan packed = plan_training(config), unpacked = plan_training(config, {.is_packed = false});
  config.packing = "online";
  const Plan online = plan_training(config);
  CHECK_FALSE(unpacked.layout);
  CHECK_FALSE(online.layout);
  CHECK(online.reserved_bytes == unpacked.reserved_bytes);
  CHECK(packed.reserved_bytes < online.reserved_bytes);
  CHECK(packed.ledger.peak_bytes() == online.ledger.peak_bytes());
  CHECK(packed.ledger.kinds_at_peak() == online.ledger.kinds_at_peak());
  CHECK(packed.run.total.flops == online.run.total.flops);
}
