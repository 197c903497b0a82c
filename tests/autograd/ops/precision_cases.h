// The cases of precision_bounds_test.cpp that are about rows: softmax and what is made of it, norms, attention; and the loss
// that makes its own logits.
#pragma once

#include <refrain/tests/support/half_bounds.h>

namespace refrain::testing {

std::vector<HalfCase> row_cases();
std::vector<HalfCase> loss_cases();

}  // namespace refrain::testing
