// bench_train: step time and peak bytes of one named training. One model a process, so that the process's peak is its own.
#include <refrain/bench/train/workload.h>

#include <refrain/core/cpu/process_memory.h>
#include <refrain/core/device.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/kernel.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace refrain;
using namespace refrain::bench;

constexpr const char* kUsage =
    "usage: bench_train [--model NAME] [--threads N] [--steps N] [--warmup N] [--batch N] [--precision MODE]\n"
    "                   [--device cpu|cuda] [--json [FILE]] [--list]\n";

struct Options {
  std::string model = "vit-28", json_file;
  std::int64_t threads = 0, steps = 10, warmup = 2, batch = 0;
  Precision precision = Precision::f32_true;
  Device device = Device::cpu();
  bool json = false, list = false, help = false;
};

std::int64_t number(const std::string& option, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= 0, option, ": expected a number, got '", text, "'");
  return value;
}

Options parse(const std::vector<std::string>& words) {
  Options o;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      check(i + 1 < words.size(), word, ": a value must follow");
      return words[++i];
    };
    if (word == "--model")
      o.model = value();
    else if (word == "--threads")
      o.threads = number(word, value());
    else if (word == "--steps")
      o.steps = number(word, value());
    else if (word == "--warmup")
      o.warmup = number(word, value());
    else if (word == "--batch")
      o.batch = number(word, value());
    else if (word == "--precision")
      o.precision = parse_precision(value());
    else if (word == "--device") {
      const std::string& device = value();
      check(device == "cpu" || device == "cuda", "--device: expected cpu or cuda, got '", device, "'");
      if (device == "cuda") o.device = Device::cuda();
    }
    else if (word == "--list")
      o.list = true;
    else if (word == "--help" || word == "-h")
      o.help = true;
    else if (word == "--json") {
      o.json = true;
      if (i + 1 < words.size() && !words[i + 1].starts_with("--")) o.json_file = value();
    } else {
      fail("unknown option '", word, "'\n", kUsage);
    }
  }
  check(o.steps >= 1, "--steps: expected at least 1");
  return o;
}

struct Measurement {
  std::vector<double> step_ms;
  double first_loss = 0, last_loss = 0, flops_per_step = 0, replayed_flops_share = 0;
  std::int64_t num_parameters = 0, samples_per_step = 0, peak_bytes = 0, reserved_bytes = 0, planned_peak_bytes = 0;
  BytesPerKind kinds_at_peak{};
  ProcessMemory before, after;

  double quantile(double q) const {
    std::vector<double> sorted = step_ms;
    std::sort(sorted.begin(), sorted.end());
    const double at = q * double(sorted.size() - 1);
    const std::size_t below = std::size_t(at), above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - double(below)) * (sorted[above] - sorted[below]);
  }
  double median() const { return quantile(0.5); }
  double samples_per_second() const { return double(samples_per_step) / median() * 1e3; }
};

// The same program on tensors that have sizes only.
std::int64_t planned_peak(const Options& o) {
  const Device plan = Device::plan(o.device.target());
  const Training training = make_training(o.model, {o.batch, o.precision, plan});
  for (int i = 0; i < 2; ++i) training.step();
  return plan.peak_bytes();
}

Measurement measure(const Options& o) {
  Measurement m;
  m.planned_peak_bytes = planned_peak(o);
  m.before = process_memory();
  const Training training = make_training(o.model, {o.batch, o.precision, o.device});
  m.num_parameters = training.num_parameters;
  m.samples_per_step = training.samples_per_step;
  for (std::int64_t i = 0; i < o.warmup + o.steps; ++i) {
    const Cost total = cost_meter().total, replay = cost_meter().replay;
    const auto start = std::chrono::steady_clock::now();
    const double loss = training.step();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    if (i == 0) m.first_loss = loss;
    m.last_loss = loss;
    m.flops_per_step = cost_meter().total.flops - total.flops;
    m.replayed_flops_share = m.flops_per_step > 0 ? (cost_meter().replay.flops - replay.flops) / m.flops_per_step : 0;
    if (i >= o.warmup) m.step_ms.push_back(elapsed.count());
  }
  const Ledger ledger = o.device.ledger();
  m.peak_bytes = ledger.peak_bytes();
  m.kinds_at_peak = ledger.kinds_at_peak();
  m.reserved_bytes = o.device.reserved_bytes();
  m.after = process_memory();
  return m;
}

void write_json(std::ostream& out, const Options& o, const Measurement& m) {
  out << "{\"engine\": \"refrain\", \"device\": \"" << o.device << "\", \"model\": \"" << o.model << "\", \"precision\": \"" << name_of(o.precision) << "\", \"threads\": " << num_threads() << ", \"steps\": " << o.steps
      << ", \"parameters\": " << m.num_parameters << ", \"samples_per_step\": " << m.samples_per_step << ",\n \"median_ms\": " << m.median()
      << ", \"min_ms\": " << m.quantile(0) << ", \"quartile_1_ms\": " << m.quantile(0.25) << ", \"quartile_3_ms\": " << m.quantile(0.75)
      << ", \"max_ms\": " << m.quantile(1) << ", \"samples_per_second\": " << m.samples_per_second()
      << ",\n \"first_loss\": " << m.first_loss << ", \"last_loss\": " << m.last_loss << ", \"flops_per_step\": " << m.flops_per_step
      << ", \"replayed_flops_share\": " << m.replayed_flops_share << ", \"planned_peak_bytes\": " << m.planned_peak_bytes << ",\n \"peak_bytes\": {\"total\": " << m.peak_bytes;
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    out << ", \"" << name_of(MemoryKind(kind)) << "\": " << m.kinds_at_peak[std::size_t(kind)];
  }
  out << "}, \"reserved_peak_bytes\": " << m.reserved_bytes << ",\n \"process_start_bytes\": " << m.before.resident
      << ", \"process_peak_bytes\": " << m.after.peak << "}\n";
}

void write_text(std::ostream& out, const Options& o, const Measurement& m) {
  const double mib = 1024 * 1024;
  out << o.model << ", " << name_of(o.precision) << " on " << o.device << ": " << m.num_parameters << " parameters, " << m.samples_per_step << " samples a step, " << num_threads()
      << " threads\n"
      << "step      " << m.median() << " ms (quartiles " << m.quantile(0.25) << " … " << m.quantile(0.75) << ", range " << m.quantile(0)
      << " … " << m.quantile(1) << ", " << o.steps << " steps)\n"
      << "          " << m.samples_per_second() << " samples/s, " << m.flops_per_step / m.median() * 1e-6 << " GFLOP/s, "
      << 100 * m.replayed_flops_share << " % replayed\n"
      << "peak      " << double(m.peak_bytes) / mib << " MiB live";
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    const std::int64_t bytes = m.kinds_at_peak[std::size_t(kind)];
    if (bytes > 0) out << ", " << name_of(MemoryKind(kind)) << ' ' << double(bytes) / mib;
  }
  out << ", planned " << double(m.planned_peak_bytes) / mib << "\nreserved  " << double(m.reserved_bytes) / mib << " MiB; process " << double(m.after.peak) / mib << " MiB, "
      << double(m.after.peak - m.before.resident) / mib << " above its start\n"
      << "loss      " << m.first_loss << " → " << m.last_loss << '\n';
}

int run(const Options& o) {
  if (o.help) {
    std::cout << kUsage;
    return 0;
  }
  if (o.list) {
    for (const Workload& w : workloads()) std::cout << w.name << ": " << w.description << ", batch " << w.batch << '\n';
    return 0;
  }
  if (o.threads > 0) set_num_threads(int(std::min<std::int64_t>(o.threads, 1024)));
  const Measurement m = measure(o);
  if (!o.json)
    write_text(std::cout, o, m);
  else if (o.json_file.empty())
    write_json(std::cout, o, m);
  else {
    std::ofstream file(o.json_file);
    write_json(file, o, m);
    check<StorageError>(bool(file.flush()), "cannot write ", o.json_file);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse({argv + 1, argv + argc}));
  } catch (const InvalidArgument& error) {
    std::cerr << "bench_train: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "bench_train: " << error.what() << '\n';
    return 1;
  }
}
