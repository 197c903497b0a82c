// The cases of precision_bounds_test.cpp that are about rows: softmax and what is made of it, norms, attention.
#pragma once

#include <refrain/tests/support/half_bounds.h>

namespace refrain::testing {

std::vector<HalfCase> row_cases();

}  // namespace refrain::testing
