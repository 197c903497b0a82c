#include <refrain/tests/support/catch.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/plan.h>

using namespace refrain;
using Catch::Contains;

namespace {

Config on(const std::string& device) {
  Config config;
  config.device = device;
  return config;
}

}  // namespace

TEST_CASE("device choice: words for devices are checked when a configuration is read") {
  for (const std::string word : {"auto", "cpu", "cuda", "cuda:0", "cuda:13"}) CHECK(load_config("", std::vector<std::string>{"--device", word}).device == word);
  for (const std::string word : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA", "cuda:99999999999"})
    CHECK_THROWS_WITH(load_config("", std::vector<std::string>{"--device=" + word}), Contains("device: expected auto, cpu, cuda, or cuda:1 and so on"));
}

TEST_CASE("device choice: auto is the CPU where there is no CUDA device, cuda is an error there") {
  CHECK(choose_device(on("cpu")) == Device::cpu());
  CHECK(device_word(Device::cpu()) == "cpu");
  CHECK(free_memory(Device::cpu()) > 0);
  CHECK(plan_device(on("cuda:2")).target() == DeviceKind::cuda);
  CHECK(plan_device(on("cpu")).target() == DeviceKind::cpu);
  if (Device::cuda_problem().empty()) return;
  CHECK(choose_device(on("auto")) == Device::cpu());
  CHECK(device_kind(on("auto")) == DeviceKind::cpu);
  CHECK_THROWS_AS(choose_device(on("cuda")), DeviceUnavailable);
  CHECK_THROWS_WITH(choose_device(on("cuda:3")), Contains("no CUDA device 3: "));
}

TEST_CASE("device choice: a training is planned for CUDA without such a device") {
  Config config = on("cuda");
  config.data_path = "/nonexistent";
  config.image_size = 28;
  config.depth = 1;
  const Plan plan = plan_training(config);
  CHECK(plan.config.device == "cuda");
  CHECK(plan.ledger.peak_bytes() > 0);
  CHECK(plan.reserved_bytes >= plan.ledger.peak_bytes());
}
