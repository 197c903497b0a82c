#include <refrain/train/calibrate.h>

#include <refrain/autograd/precision.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/kernel.h>
#include <refrain/models/block.h>
#include <refrain/nn/creation.h>
#include <refrain/train/clock.h>
#include <refrain/train/device_choice.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>

namespace refrain {

namespace {

// Seconds of the fastest call within `budget` seconds; at least two calls, as the first meets fresh pages and cold code.
template <class F>
double least_seconds(double budget, F&& f) {
  f();
  double least = std::numeric_limits<double>::max();
  const double end = now() + budget;
  do {
    const double begin = now();
    f();
    least = std::min(least, now() - begin);
  } while (now() < end);
  return std::max(least, 1e-9);
}

double copy_rate(const Device& device) {
  const std::int64_t bytes = std::int64_t{1} << (device.kind() == DeviceKind::cuda ? 28 : 25);  // beyond the caches
  const Tensor from = full({bytes}, 1, DType::u8, device), to = full({bytes}, 0, DType::u8, device);
  const double seconds = least_seconds(0.1, [&] {
    if (!to.is_on_host()) {
      copy_values(to, from);
      return device.synchronize();
    }
    parallel_for(bytes, std::int64_t{1} << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.address() + begin, from.address() + begin, std::size_t(end - begin));
    });
  });
  return 2.0 * double(bytes) / seconds;
}

double block_rate(const Config& config, const Device& device, double bytes_per_second) {
  constexpr std::int64_t kMostChannels = 512;
  constexpr double kMostFlops = 1e10;
  const std::int64_t head = config.width / config.num_heads, heads = std::clamp<std::int64_t>(kMostChannels / head, 1, config.num_heads);
  const std::int64_t width = heads * head, side = config.model == "gpt2" ? 0 : config.image_size / config.patch_size;
  const std::int64_t tokens = std::min<std::int64_t>(config.model == "gpt2" ? config.context : side * side + 1, 1024);
  const double flops_a_sample = 72.0 * double(tokens) * double(width) * double(width);
  const std::int64_t samples = std::clamp<std::int64_t>(std::int64_t(kMostFlops / flops_a_sample), 1, config.batch);

  const Precision precision = parse_precision(config.precision);
  const PrecisionScope precision_scope(precision);
  const CreationScope creation({.device = device});
  BlockOptions options;
  options.width = width;
  options.hidden = std::max<std::int64_t>(1, std::llround(config.mlp_ratio * double(width)));
  options.num_heads = heads;
  options.attention.causal = config.model == "gpt2";
  options.mlp.gelu = config.model == "gpt2" ? GeluForm::tanh : GeluForm::erf;
  Block block(options);
  const Tensor x = full({samples, tokens, width}, 0.5, parameter_dtype(precision), device);
  const Tensor grad_out = full({samples, tokens, width}, 0.01, parameter_dtype(precision), device);
  Cost cost;
  const double seconds = least_seconds(0.3, [&] {
    const Cost before = cost_meter().total;
    backward(block.forward(x, {}), {.grad_out = grad_out});
    for (const NamedTensor& parameter : block.named_parameters()) clear_grad(parameter.tensor);
    device.synchronize();
    cost = {cost_meter().total.flops - before.flops, cost_meter().total.bytes - before.bytes};
  });
  // A block in the cache may beat the large copy: some of the time is the arithmetic's all the same.
  return cost.flops / std::max(seconds - cost.bytes / bytes_per_second, 0.2 * seconds);
}

}  // namespace

std::optional<MachineRates> measure_rates(const Config& config) {
  if (device_kind(config) == DeviceKind::cuda && !Device::cuda_problem().empty()) return {};
  return std::async(std::launch::async, [&] {
           const Device device = new_device(config);
           MachineRates rates;
           rates.bytes_per_second = copy_rate(device);
           rates.flops_per_second = block_rate(config, device, rates.bytes_per_second);
           rates.source = "just measured here";
           return rates;
         }).get();
}

}  // namespace refrain
