#include <refrain/core/check.h>
#include <refrain/tests/support/catch.h>
#include <refrain/train/published_rates.h>

using namespace refrain;

TEST_CASE("rates: a GPU's published rates go by precision, and other names are refused with those there are") {
  CHECK(published_rates("h100", "32-true").flops_per_second == 67e12);
  CHECK(published_rates("h100", "bf16-mixed").flops_per_second == 989.5e12);
  CHECK(published_rates("a100", "16-mixed").bytes_per_second == 2039e9);
  CHECK_THROWS_WITH(published_rates("h10", "32-true"), Catch::Contains("a100") && Catch::Contains("'h10'"));
}
