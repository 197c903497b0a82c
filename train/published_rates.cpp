#include <refrain/train/published_rates.h>

#include <refrain/core/check.h>

#include <array>
#include <string>

namespace refrain {

namespace {

struct Gpu {
  std::string_view name;
  double f32_tflops, half_tflops, gigabytes_per_second;
};

// NVIDIA's data sheets: A100 80GB SXM, H100 SXM, H200 SXM, L4, L40S; whitepapers of GA102 and AD102 for the last two.
// Where a sheet gives tensor rates with sparsity, this is half of them.
constexpr std::array<Gpu, 7> kGpus{{{"a100", 19.5, 312, 2039},
                                    {"h100", 67, 989.5, 3350},
                                    {"h200", 67, 989.5, 4800},
                                    {"l4", 30.3, 121, 300},
                                    {"l40s", 91.6, 362, 864},
                                    {"rtx3090", 35.6, 71, 936},
                                    {"rtx4090", 82.6, 165.2, 1008}}};

}  // namespace

MachineRates published_rates(std::string_view gpu, std::string_view precision) {
  std::string names;
  for (const Gpu& known : kGpus) {
    if (known.name == gpu)
      return {1e12 * (precision == "32-true" ? known.f32_tflops : known.half_tflops), 1e9 * known.gigabytes_per_second,
              concat("published for the ", gpu, ", which no training reaches")};
    names += concat(names.empty() ? "" : ", ", known.name);
  }
  fail("rates: expected one of ", names, ", got '", gpu, "'");
}

}  // namespace refrain
