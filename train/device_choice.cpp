#include <refrain/train/device_choice.h>

#include <refrain/core/check.h>
#include <refrain/core/cpu/available_memory.h>
#include <refrain/core/cuda/backend.h>
#include <refrain/dist/join_group.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace refrain {

namespace {

constexpr std::string_view kCuda = "cuda", kNumbered = "cuda:";

// Of this process: under a launcher each rank of a machine has its own, which may be the only one that it is shown.
int own_index() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool sees_one = visible != nullptr && *visible != '\0' && std::string_view(visible).find(',') == std::string_view::npos;
  return sees_one ? 0 : place_from_environment().local_rank;
}

// The number in "cuda:N", or this process's own for "cuda".
std::optional<int> cuda_index(const std::string& word) {
  if (word == kCuda) return own_index();
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
  return device_kind(config) == DeviceKind::cuda ? Device::cuda(cuda_index(config.device).value_or(own_index())) : Device::cpu();
}

Device new_device(const Config& config) {
  return device_kind(config) == DeviceKind::cuda ? Device::new_cuda(cuda_index(config.device).value_or(own_index())) : Device::new_cpu();
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
