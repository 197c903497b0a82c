// bench_ops: time, GFLOP/s and GB/s of every kernel, from its Cost, and their share of what this machine was measured
// to do: the rate of a large product and the bandwidth of a large copy.
#include <refrain/bench/ops/cases.h>
#include <refrain/core/parallel.h>
#include <refrain/core/random.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/matmul/gemm.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

namespace refrain::bench {

Setting& setting() {
  static Setting chosen;
  return chosen;
}

Tensor uniform(const Shape& shape, DType dtype) {
  const RandomKey key{.seed = 1, .purpose = RandomPurpose::user};
  std::vector<float> values(std::size_t(numel_of(shape)));
  parallel_for(std::int64_t(values.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) values[std::size_t(i)] = 2 * key.uniform(std::uint64_t(i)) - 1;
  });
  const Tensor wide = from_values(values, shape, setting().device);
  if (dtype == DType::f32) return wide;
  const Tensor out = space(shape, dtype);
  launch(Convert{.x = wide, .out = out});
  return out;
}

Tensor uniform(const Shape& shape) { return uniform(shape, setting().dtype); }

Tensor indices(const Shape& shape, std::int64_t below) {
  const RandomKey key{.seed = 2, .purpose = RandomPurpose::user};
  std::vector<std::int64_t> values(std::size_t(numel_of(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::int64_t(key.word(i)) % below;
  return from_values(values, shape, setting().device);
}

Tensor space(const Shape& shape, DType dtype) { return empty(shape, dtype, setting().device); }
Tensor space(const Shape& shape) { return space(shape, setting().dtype); }
Tensor scratch_space(std::int64_t numel, DType dtype) { return numel > 0 ? space({numel}, dtype) : Tensor(); }

namespace {

struct Options {
  std::string filter, json;
  int repeats = 9;
  double seconds_per_repeat = 0.02;
  bool list = false;
};

struct Result {
  std::string name;
  Cost cost;
  double median, least;  // seconds
};

double seconds_of(const std::function<void()>& f, std::int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < times; ++i) f();
  setting().device.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / double(times);
}

// Median and least of the repeats, each a run of launches long enough to be measured.
std::pair<double, double> measure(const std::function<void()>& f, const Options& options) {
  seconds_of(f, 1);
  const double once = seconds_of(f, 1);
  const std::int64_t times = std::max<std::int64_t>(1, std::int64_t(options.seconds_per_repeat / std::max(once, 1e-7)));
  std::vector<double> seconds;
  for (int i = 0; i < options.repeats; ++i) seconds.push_back(seconds_of(f, times));
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

struct Peak {
  double flops, bytes;  // a second
};

// A GPU: a product of large matrices as linear() has them, and a copy of 1 GiB.
Peak measure_gpu_peak(const Options& options) {
  const std::int64_t n = 8192, elements = std::int64_t{1} << 28;
  const std::int64_t workspace_bytes = product_workspace_bytes(DeviceKind::cuda, n, n, n);
  const Tensor a = uniform({n, n}), b = uniform({n, n}), c = space({n, n}), workspace = space({workspace_bytes}, DType::u8);
  const double product = measure([&] { launch(LinearForward{.x = a, .weight = b, .bias = {}, .out = c, .pre_activation = {}, .workspace = workspace}); },
                                 options).second;
  const Tensor from = space({elements}, DType::f32), to = space({elements}, DType::f32);
  const double copy = measure([&] { copy_values(to, from); }, options).second;
  return {2.0 * double(n * n * n) / product, 2.0 * double(elements) * sizeof(float) / copy};
}

Peak measure_peak(const Options& options) {
  if (setting().is_large()) return measure_gpu_peak(options);
  const std::int64_t n = 1024, elements = std::int64_t{1} << 24;
  const Tensor a = uniform({n, n}, DType::f32), b = uniform({n, n}, DType::f32), c = space({n, n}, DType::f32);
  const double product = measure([&] {
    gemm(GemmArgs<float>{.m = n, .n = n, .k = n, .a = {a.data<float>(), n}, .b = {b.data<float>(), n}, .c = c.data<float>(), .ldc = n});
  }, options).second;
  const Tensor from = full({elements}, 1, DType::f32), to = full({elements}, 0, DType::f32);
  const double copy = measure([&] {
    parallel_for(elements, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data<float>() + begin, from.data<float>() + begin, std::size_t(end - begin) * sizeof(float));
    });
  }, options).second;
  return {2.0 * double(n * n * n) / product, 2.0 * double(elements) * sizeof(float) / copy};
}

void write_json(const std::string& path, const std::vector<Result>& results, const Peak& peak) {
  std::ofstream out(path);
  check<StorageError>(out.good(), "bench_ops: cannot write ", path);
  out << "{\n  \"device\": \"" << setting().device << "\",\n  \"dtype\": \"" << setting().dtype << "\",\n  \"threads\": " << num_threads() << ",\n  \"onednn\": " << (has_onednn() ? "true" : "false") << ",\n  \"peak_gflops\": " << peak.flops * 1e-9
      << ",\n  \"peak_gbytes_per_second\": " << peak.bytes * 1e-9 << ",\n  \"kernels\": [";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    out << (i ? ",\n" : "\n") << "    {\"name\": \"" << r.name << "\", \"median_us\": " << r.median * 1e6 << ", \"least_us\": " << r.least * 1e6
        << ", \"flops\": " << r.cost.flops << ", \"bytes\": " << r.cost.bytes << ", \"gflops\": " << r.cost.flops / r.median * 1e-9
        << ", \"gbytes_per_second\": " << r.cost.bytes / r.median * 1e-9 << ", \"share_of_peak_flops\": " << r.cost.flops / r.median / peak.flops
        << ", \"share_of_peak_bytes\": " << r.cost.bytes / r.median / peak.bytes << "}";
  }
  out << "\n  ]\n}\n";
  out.flush();
  check<StorageError>(out.good(), "bench_ops: cannot write ", path);
}

constexpr const char* kUsage =
    "usage: bench_ops [--device cpu|cuda] [--dtype f32|f16|bf16] [--filter TEXT] [--json FILE] [--repeats N] [--threads N] [--list]\n"
    "Measures the kernels whose names contain TEXT; medians over N repeats (9).\n";

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (text == name_of(dtype)) return dtype;
  }
  fail("bench_ops: expected f32, f16 or bf16, got '", text, "'");
}

Device parse_device(const std::string& text) {
  check(text == "cpu" || text == "cuda", "bench_ops: expected cpu or cuda, got '", text, "'");
  return text == "cpu" ? Device::cpu() : Device::cuda();
}

int positive(const char* text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  check(error == std::errc{} && *end == '\0' && value > 0, "bench_ops: expected a positive number, got '", text, "'");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      options.list = true;
      continue;
    }
    check((flag == "--filter" || flag == "--device" || flag == "--dtype" || flag == "--json" || flag == "--repeats" || flag == "--threads") && i + 1 < argc, "bench_ops: unknown or incomplete option ", flag, "\n", kUsage);
    const char* value = argv[++i];
    if (flag == "--filter") options.filter = value;
    else if (flag == "--device") setting().device = parse_device(value);
    else if (flag == "--dtype") setting().dtype = parse_dtype(value);
    else if (flag == "--json") options.json = value;
    else if (flag == "--repeats") options.repeats = positive(value);
    else set_num_threads(positive(value));
  }
  return options;
}

void run(const Options& options) {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [&](const Case& c) { return c.name.find(options.filter) == std::string::npos; });
  if (options.list) {
    for (const Case& c : cases) std::cout << c.name << '\n';
    return;
  }
  const Peak peak = measure_peak(options);
  std::cout << setting().device << ", " << setting().dtype << "; ";
  std::printf("%d threads; product %.0f GFLOP/s, copy %.1f GB/s\n", num_threads(), peak.flops * 1e-9, peak.bytes * 1e-9);
  std::printf("%-52s %12s %10s %10s %8s %8s\n", "kernel", "median us", "GFLOP/s", "GB/s", "% flops", "% bytes");
  std::vector<Result> results;
  for (const Case& c : cases) {
    const Prepared p = c.prepare();
    const auto [median, least] = measure(p.launch, options);
    results.push_back({c.name, p.cost, median, least});
    std::printf("%-52s %12.1f %10.2f %10.2f %8.1f %8.1f\n", c.name.c_str(), median * 1e6, p.cost.flops / median * 1e-9, p.cost.bytes / median * 1e-9,
                100 * p.cost.flops / median / peak.flops, 100 * p.cost.bytes / median / peak.bytes);
    std::fflush(stdout);
  }
  if (!options.json.empty()) write_json(options.json, results, peak);
}

}  // namespace

}  // namespace refrain::bench

int main(int argc, char** argv) {
  try {
    refrain::bench::run(refrain::bench::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
