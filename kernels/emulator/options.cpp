#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/thread.h>

#include <cstdlib>

namespace refrain::emulator {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

long long number(const char* name, long long otherwise) {
  const std::string value = environment(name);
  return value.empty() ? otherwise : std::atoll(value.c_str());
}

Options from_environment() {
  Options options;
  const std::string order = environment("REFRAIN_EMULATOR_ORDER");
  if (order == "reverse") options.order = Order::reverse;
  else if (order == "random") options.order = Order::random;
  else if (!order.empty() && order != "forward") throw Error("REFRAIN_EMULATOR_ORDER: expected forward, reverse or random, got " + order);
  options.seed = std::uint64_t(number("REFRAIN_EMULATOR_SEED", 1));
  options.num_threads = int(number("REFRAIN_EMULATOR_THREADS", 0));
  options.is_deferred = number("REFRAIN_EMULATOR_DEFERRED", 0) != 0;
  options.is_strict = number("REFRAIN_EMULATOR_STRICT", 0) != 0;
  options.timeout_seconds = int(number("REFRAIN_EMULATOR_TIMEOUT", options.timeout_seconds));
  options.hidden_libraries = environment("REFRAIN_EMULATOR_HIDE");
  options.report = environment("REFRAIN_EMULATOR_REPORT");
  options.device_bytes = std::size_t(number("REFRAIN_EMULATOR_MEMORY", (long long)(options.device_bytes >> 20))) << 20;
  return options;
}

}  // namespace

Options& options() {
  static Options* all = new Options(from_environment());  // never destroyed: read at exit
  return *all;
}

}  // namespace refrain::emulator
