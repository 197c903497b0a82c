// Rates of GPUs as their makers publish them, for estimates of time on machines that are not at hand.
#pragma once

#include <refrain/train/calibrate.h>

#include <string_view>

namespace refrain {

// Dense peak rates: f32 without TF32 in `32-true`, 16-bit tensor-core products with f32 sums in the other precisions. No
// training reaches them, so a time computed from them is a lower bound. Throws InvalidArgument for other names than a100, h100,
// h200, l4, l40s, rtx3090 and rtx4090.
MachineRates published_rates(std::string_view gpu, std::string_view precision);

}  // namespace refrain
