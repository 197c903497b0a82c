#include <refrain/train/device_choice.h>

#include <refrain/core/check.h>
#include <refrain/core/cpu/available_memory.h>
#include <refrain/core/cuda/backend.h>

#include <array>
#include <charconv>
#include <optional>

namespace refrain {

namespace {

constexpr std::string_view kCuda = "cuda", kNumbered = "cuda:";

// The number in "cuda" or "cuda:N".
std::optional<int> cuda_index(const std::string& word) {
  if (word == kCuda) return 0;
  if (!word.starts_with(kNumbered)) return {};
  int index = -1;
  const auto [rest, error] = std::from_chars(word.data() + kNumbered.size(), word.data() + word.size(), index);
  return error == std::errc() && rest == word.data() + word.size() && index >= 0 ? std::optional(index) : std::nullopt;
}

}  // namespace

DeviceKind device_kind(const Config& config) {
  if (cuda_index(config.device)) return DeviceKind::cuda;
  return config.device == "auto" && Device::cuda_problem().empty() ? DeviceKind::cuda : DeviceKind::cpu;
}

Device choose_device(const Config& config) {
  return device_kind(config) == DeviceKind::cuda ? Device::cuda(cuda_index(config.device).value_or(0)) : Device::cpu();
}

Device new_device(const Config& config) {
  return device_kind(config) == DeviceKind::cuda ? Device::new_cuda(cuda_index(config.device).value_or(0)) : Device::new_cpu();
}

Device plan_device(const Config& config) { return Device::plan(device_kind(config)); }

std::string device_word(const Device& device) {
  if (device.target() == DeviceKind::cpu) return "cpu";
  return device.index() == 0 ? std::string(kCuda) : concat(kNumbered, device.index());
}

void check_device_word(const std::string& word) {
  if (word == "auto" || word == "cpu" || cuda_index(word)) return;
  const std::string nearest = nearest_name(word, std::array<std::string, 3>{"auto", "cpu", "cuda"});
  fail("device: expected auto, cpu, cuda, or cuda:1 and so on; got '", word, "'",
       nearest.empty() ? "" : concat("; did you mean '", nearest, "'?"));
}

std::int64_t free_memory(const Device& device) {
  return device.kind() == DeviceKind::cuda ? cuda_memory(device.index()).free : available_memory();
}

}  // namespace refrain
