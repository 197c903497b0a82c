// The cases of precision_bounds_test.cpp that are about rows: softmax and what is made of it, norms, attention; and the ops
// that take rows a chunk at a time.
#pragma once

#include <refrain/tests/support/half_bounds.h>

namespace refrain::testing {

std::vector<HalfCase> row_cases();
std::vector<HalfCase> loss_cases();
std::vector<HalfCase> mlp_cases();

}  // namespace refrain::testing
