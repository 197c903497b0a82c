// Learning-rate schedules against numbers from the formulas and from PyTorch.
#include <refrain/core/check.h>
#include <refrain/optim/schedule.h>
#include <refrain/tests/support/catch.h>

#include <limits>
#include <vector>

using namespace refrain;

TEST_CASE("schedule: the cosine reaches its floor at the horizon and stays there") {
  const std::vector<double> expected{
      0.1, 0.097552826, 0.090450850, 0.079389263, 0.065450850, 0.05, 0.034549150, 0.020610737, 0.009549150, 0.002447174, 0};
  const Schedule schedule = Schedule::cosine(0.1, 10);
  for (std::int64_t t = 0; t <= 20; ++t) {
    CHECK(schedule.lr(t) == Approx(t <= 10 ? expected[std::size_t(t)] : 0).margin(1e-9));
  }
  CHECK(schedule.lr(10) == 0);
  CHECK(schedule.lr(1'000'000'000'000) == 0);
  const Schedule with_floor = Schedule::cosine(0.1, 10, 0.02);
  CHECK(with_floor.lr(0) == 0.1);
  CHECK(with_floor.lr(5) == Approx(0.06).epsilon(1e-15));
  CHECK(with_floor.lr(10) == 0.02);
  CHECK(with_floor.lr(11) == 0.02);
}

TEST_CASE("schedule: a resumed run continues with the exact rate of its step") {
  const Schedule schedule = Schedule::cosine(1e-3, 100);
  CHECK(schedule.lr(44) == Approx(5.936906572928624e-4).epsilon(1e-15));
  CHECK(schedule.lr(45) == Approx(5.782172325201155e-4).epsilon(1e-15));
  CHECK(schedule.lr(46) == Approx(5.626666167821522e-4).epsilon(1e-15));
  // A function of the step: a second object asked for the later steps alone gives the same bits.
  std::vector<double> unbroken, resumed;
  for (std::int64_t t = 0; t < 100; ++t) unbroken.push_back(schedule.lr(t));
  for (std::int64_t t = 0; t < 45; ++t) resumed.push_back(Schedule::cosine(1e-3, 100).lr(t));
  const Schedule second = Schedule::cosine(1e-3, 100);
  for (std::int64_t t = 45; t < 100; ++t) resumed.push_back(second.lr(t));
  CHECK(resumed == unbroken);
}

TEST_CASE("schedule: steps are optimizer steps, whatever they are made of") {
  // 20 micro-batches, 4 to a step: after them 5 optimizer steps are done and half of the cosine over 10 is gone.
  std::int64_t optimizer_steps = 0;
  for (int micro = 1; micro <= 20; ++micro) optimizer_steps += micro % 4 == 0;
  CHECK(Schedule::cosine(0.1, 10).lr(optimizer_steps) == Approx(0.05).epsilon(1e-15));
}

TEST_CASE("schedule: linear warm-up rises to the full rate, then constant or cosine takes over") {
  const Schedule warmup = Schedule::warmup(0.8, 4);
  CHECK(warmup.lr(0) == 0.2);
  CHECK(warmup.lr(1) == 0.4);
  CHECK(warmup.lr(2) == Approx(0.6).epsilon(1e-15));
  CHECK(warmup.lr(3) == 0.8);
  CHECK(warmup.lr(4) == 0.8);
  CHECK(warmup.lr(1000) == 0.8);
  const Schedule both = Schedule::cosine_with_warmup(0.8, 14, 4, 0.1);
  for (std::int64_t t = 0; t < 4; ++t) CHECK(both.lr(t) == warmup.lr(t));
  CHECK(both.lr(4) == 0.8);
  CHECK(both.lr(9) == Approx(0.45).epsilon(1e-15));
  CHECK(both.lr(13) == Approx(0.1 + 0.7 * (1 + std::cos(0.9 * 3.14159265358979323846)) / 2).epsilon(1e-14));
  CHECK(both.lr(14) == 0.1);
  CHECK(both.lr(99) == 0.1);
  for (std::int64_t t = 5; t < 20; ++t) CHECK(both.lr(t) <= both.lr(t - 1));
}

TEST_CASE("schedule: no warm-up, all warm-up, constant") {
  for (std::int64_t t : {0, 1, 7}) {
    CHECK(Schedule::constant(0.3).lr(t) == 0.3);
    CHECK(Schedule::warmup(0.3, 0).lr(t) == 0.3);
    CHECK(Schedule::cosine_with_warmup(0.3, 10, 0).lr(t) == Schedule::cosine(0.3, 10).lr(t));
  }
  const Schedule all = Schedule::cosine_with_warmup(1, 4, 4, 0.5);
  CHECK(all.lr(3) == 1);
  CHECK(all.lr(4) == 0.5);
  CHECK(Schedule::cosine(0.3, 10) == Schedule::cosine_with_warmup(0.3, 10, 0));
  CHECK_FALSE(Schedule::cosine(0.3, 10) == Schedule::cosine(0.3, 11));
}

TEST_CASE("schedule: impossible settings are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(Schedule::constant(-1), InvalidArgument);
  CHECK_THROWS_AS(Schedule::constant(nan), InvalidArgument);
  CHECK_THROWS_AS(Schedule::cosine(0.1, 0), InvalidArgument);
  CHECK_THROWS_AS(Schedule::cosine(0.1, 10, 0.2), InvalidArgument);
  CHECK_THROWS_AS(Schedule::cosine_with_warmup(0.1, 10, 11), InvalidArgument);
  CHECK_THROWS_AS(Schedule::warmup(0.1, -1), InvalidArgument);
  CHECK_THROWS_AS(Schedule::constant(0.1).lr(-1), InvalidArgument);
}
