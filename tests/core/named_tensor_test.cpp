// Patterns over parameter names.
#include <refrain/core/named_tensor.h>
#include <refrain/tests/support/catch.h>

using namespace refrain;

TEST_CASE("names: patterns match as file names do, dots included") {
  CHECK(matches_pattern("*", ""));
  CHECK(matches_pattern("blocks.*.weight", "blocks.3.attention.qkv.weight"));
  CHECK(matches_pattern("blocks.?.norm?.bias", "blocks.3.norm1.bias"));
  CHECK(matches_pattern("*a*b", "xaabyb"));
  CHECK_FALSE(matches_pattern("blocks.?.*", "blocks.12.norm1.bias"));
  CHECK_FALSE(matches_pattern("norm", "norm1"));
  CHECK_FALSE(matches_pattern("*a*b", "xaaby"));
}
