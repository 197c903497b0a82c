// A plan for people and for programs.
#pragma once

#include <refrain/train/remedies.h>

#include <string>

namespace refrain {

// Plain text: what was planned and assumed, the peak by kind and by module as in a run's report.txt, work and estimated time.
std::string plan_report(const Plan& plan);

// The same as one JSON object. The peak has summary.json's keys; an estimate of time is there when rates were given.
// With a receipt it stands under "receipt".
std::string plan_json(const Plan& plan, const Receipt* receipt = nullptr, const Remedies& remedies = {});

}  // namespace refrain
