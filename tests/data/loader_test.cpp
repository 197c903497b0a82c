#include <refrain/core/random.h>
#include <refrain/data/loader.h>
#include <refrain/tests/support/catch.h>

#include <numeric>
#include <set>
#include <thread>

using namespace refrain;

namespace {

// Sample i is the number i and a random number of (epoch, i); sample `broken` throws.
class NumberSamples : public Samples {
 public:
  explicit NumberSamples(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return {2}; }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return size_; }
  void write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const override {
    check<DataError>(index != broken_, "sample ", index, " is broken");
    float* values = reinterpret_cast<float*>(input);
    values[0] = float(index);
    values[1] = RandomKey{.seed = 9, .step = epoch, .purpose = RandomPurpose::data}.uniform(std::uint64_t(index));
    *target = index;
  }

 private:
  std::int64_t size_, broken_;
};

std::shared_ptr<const Samples> numbers(std::int64_t size, std::int64_t broken = -1) {
  return std::make_shared<NumberSamples>(size, broken);
}

// All targets and inputs of the rest of the epoch.
std::pair<std::vector<std::int64_t>, std::vector<float>> rest_of_epoch(Loader& loader) {
  std::vector<std::int64_t> targets;
  std::vector<float> inputs;
  while (const std::optional<Batch> batch = loader.next()) {
    const auto t = batch->target.to_vector<std::int64_t>();
    const auto x = batch->input.to_vector<float>();
    CHECK(std::int64_t(t.size()) == batch->size);
    CHECK(x.size() == 2 * t.size());
    targets.insert(targets.end(), t.begin(), t.end());
    inputs.insert(inputs.end(), x.begin(), x.end());
  }
  return {targets, inputs};
}

}  // namespace

TEST_CASE("loader: 65 samples in batches of 64 make 2, 64 make 1, none is a clear error") {
  for (const auto& [size, batches] : {std::pair(65, 2), std::pair(64, 1), std::pair(1, 1)}) {
    Loader loader(numbers(size), {.batch = 64});
    CHECK(loader.num_batches() == batches);
    int count = 0;
    std::int64_t last = 0, samples = 0;
    while (const auto batch = loader.next()) ++count, last = batch->size, samples += batch->size;
    CHECK(count == batches);
    CHECK(samples == size);
    CHECK(last == (size - 1) % 64 + 1);
  }
  CHECK_THROWS_WITH(Loader(numbers(0), {.batch = 64}), Catch::Contains("no sample"));
}

TEST_CASE("loader: drop_last leaves the short batch out, and refuses when nothing is left") {
  Loader loader(numbers(65), {.batch = 64, .drop_last = true});
  CHECK(loader.num_samples() == 64);
  CHECK(rest_of_epoch(loader).first.size() == 64);
  CHECK_THROWS_WITH(Loader(numbers(63), {.batch = 64, .drop_last = true}), Catch::Contains("no whole batch"));
}

TEST_CASE("loader: an epoch holds each sample once, in an order that is a function of seed and epoch") {
  Loader loader(numbers(100), {.batch = 7, .seed = 4});
  const auto first = rest_of_epoch(loader).first, second = rest_of_epoch(loader).first;
  CHECK(std::set(first.begin(), first.end()).size() == 100);
  CHECK(first == epoch_order(100, 4, 0, true));
  CHECK(second == epoch_order(100, 4, 1, true));
  CHECK(first != second);
  CHECK(first != epoch_order(100, 5, 0, true));
  Loader other_batch(numbers(100), {.batch = 32, .seed = 4, .num_slots = 2});
  CHECK(rest_of_epoch(other_batch).first == first);
}

TEST_CASE("loader: without shuffling the order is the data set's") {
  Loader loader(numbers(10), {.batch = 3, .shuffle = false});
  std::vector<std::int64_t> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(rest_of_epoch(loader).first == expected);
  CHECK(rest_of_epoch(loader).first == expected);
}

TEST_CASE("loader: shuffling puts every sample in every place about equally often") {
  std::vector<int> count(25);
  for (int epoch = 0; epoch < 2000; ++epoch) {
    const auto order = epoch_order(5, 1, epoch, true);
    for (int place = 0; place < 5; ++place) ++count[std::size_t(order[std::size_t(place)] * 5 + place)];
  }
  for (const int times : count) {  // 400 expected, standard deviation 18
    CHECK(times > 310);
    CHECK(times < 490);
  }
}

TEST_CASE("loader: resumed after 20 of 64 it gives the other 44 in the original order with the same random numbers, then epoch 2") {
  Loader unbroken(numbers(64), {.batch = 1, .seed = 2});
  for (int i = 0; i < 20; ++i) unbroken.next();
  const LoaderState state = unbroken.state();
  CHECK(state == LoaderState{0, 20});
  Loader resumed(numbers(64), {.batch = 1, .seed = 2});
  resumed.set_state(state);
  const auto expected = rest_of_epoch(unbroken);
  CHECK(expected.first.size() == 44);
  CHECK(rest_of_epoch(resumed) == expected);
  CHECK(rest_of_epoch(resumed) == rest_of_epoch(unbroken));
}

TEST_CASE("loader: every position can be saved and restored, the end of an epoch included") {
  Loader loader(numbers(10), {.batch = 4, .seed = 2});
  for (int step = 0; step < 9; ++step) {
    const LoaderState state = loader.state();
    Loader resumed(numbers(10), {.batch = 4, .seed = 2});
    resumed.set_state(state);
    CHECK(resumed.state() == state);
    const auto a = loader.next(), b = resumed.next();
    REQUIRE(a.has_value() == b.has_value());
    if (a) CHECK(a->target.to_vector<std::int64_t>() == b->target.to_vector<std::int64_t>());
    CHECK(loader.state() == resumed.state());
  }
  CHECK_THROWS_AS(loader.set_state({0, 11}), InvalidArgument);
  CHECK_THROWS_AS(loader.set_state({-1, 0}), InvalidArgument);
}

TEST_CASE("loader: upcoming() tells batches, samples and targets of a window before it is read, and stops at the epoch's end") {
  class Counted : public NumberSamples {
   public:
    Counted() : NumberSamples(10) {}
    std::int64_t num_targets(std::int64_t index) const override { return index + 1; }
  };
  Loader loader(std::make_shared<Counted>(), {.batch = 4, .seed = 3});
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Loader::Upcoming two = loader.upcoming(2), all = loader.upcoming(9);
    CHECK(two.batches == 2);
    CHECK(two.samples == 8);
    CHECK(all.batches == 3);
    CHECK(all.samples == 10);
    CHECK(all.targets == 55);
    std::int64_t targets = 0;
    for (int i = 0; i < 2; ++i)
      for (const std::int64_t index : loader.next()->target.to_vector<std::int64_t>()) targets += index + 1;
    CHECK(two.targets == targets);
    CHECK(loader.upcoming(5).samples == 2);
    loader.next();
    CHECK(loader.upcoming(5).batches == 0);
    CHECK(!loader.next());
  }
}

TEST_CASE("loader: what goes wrong on its thread is thrown by next(), after the whole batches before it") {
  Loader loader(numbers(10, 7), {.batch = 3, .shuffle = false});
  CHECK(loader.next()->size == 3);
  CHECK(loader.next()->size == 3);
  CHECK_THROWS_WITH(loader.next(), "sample 7 is broken");
  CHECK_THROWS_AS(loader.next(), DataError);
}

TEST_CASE("loader: can be destroyed at any moment") {
  for (int taken = 0; taken < 8; ++taken) {
    Loader loader(numbers(9), {.batch = 2});
    for (int i = 0; i < taken; ++i) loader.next();
    if (taken % 2) std::this_thread::yield();
  }
  { Loader broken(numbers(5, 0), {.batch = 2}); }
  SUCCEED();
}

TEST_CASE("loader: memory is reserved at construction, tagged as input, and never changes while it runs") {
  const Device device = Device::new_cpu();
  {
    Loader loader(numbers(100), {.batch = 10, .num_slots = 3, .device = device});
    const std::int64_t reserved = device.live_bytes(MemoryKind::input);
    CHECK(reserved == 3 * 10 * (2 * 4 + 8));
    for (int i = 0; i < 25; ++i) {
      loader.next();
      CHECK(device.live_bytes() == reserved);
    }
    CHECK(device.peak_bytes() == reserved);
  }
  CHECK(device.live_bytes() == 0);
}

TEST_CASE("loader: on a plan device batches have sizes and no bytes") {
  Loader loader(numbers(5, 0), {.batch = 2, .device = Device::plan()});
  const auto batch = loader.next();
  CHECK(batch->input.shape() == Shape{2, 2});
  CHECK(!batch->input.has_bytes());
  loader.next();
  CHECK(loader.next()->size == 1);
}

TEST_CASE("loader: a batch's storage changes version when its slot is given back") {
  Loader loader(numbers(10), {.batch = 2});
  const Tensor held = loader.next()->input;
  const std::uint64_t version = held.storage()->version();
  loader.next();
  CHECK(held.storage()->version() != version);
}

TEST_CASE("loader: ranks together hand out every sample once an epoch, in the one order, each its own run of each window") {
  for (const int world_size : {2, 3, 4}) {
    for (const std::int64_t run : {1, 2}) {
      for (const std::int64_t size : {1, 7, 24, 50}) {
        INFO(world_size << " ranks, runs of " << run << ", " << size << " samples");
        std::vector<std::unique_ptr<Loader>> loaders;
        for (int rank = 0; rank < world_size; ++rank)
          loaders.push_back(std::make_unique<Loader>(
              numbers(size), LoaderOptions{.batch = 3, .seed = 4, .rank = rank, .world_size = world_size, .run = run}));
        for (int epoch = 0; epoch < 2; ++epoch) {
          std::vector<std::int64_t> targets;
          std::int64_t begin = 0;
          while (!loaders[0]->is_at_end()) {
            const Loader::Upcoming first = loaders[0]->upcoming(run);
            std::int64_t samples = 0;
            for (auto& loader : loaders) {
              const Loader::Upcoming own = loader->upcoming(run);
              CHECK(loader->state() == LoaderState{epoch, begin});
              CHECK(own.all_samples == first.all_samples);
              CHECK(own.all_targets == first.all_samples);
              CHECK(own.all_batches == first.all_batches);
              if (own.batches > 0) CHECK(own.first == samples);
              samples += own.samples;
              std::int64_t taken = 0;
              for (std::int64_t i = 0; i < own.batches; ++i) {
                const auto batch = loader->next();
                for (const std::int64_t t : batch->target.to_vector<std::int64_t>()) targets.push_back(t), ++taken;
              }
              CHECK(taken == own.samples);
              if (own.batches == 0) loader->skip();
            }
            CHECK(samples == first.all_samples);
            begin += samples;
          }
          CHECK(targets == epoch_order(size, 4, epoch, true));
          for (auto& loader : loaders) CHECK(!loader->next());
        }
      }
    }
  }
}

TEST_CASE("loader: a position of one world is gone on from in another, and a rank's place in a window is its own") {
  Loader two(numbers(40), {.batch = 4, .seed = 1, .rank = 1, .world_size = 2, .run = 2});
  two.next();
  CHECK(two.state() == LoaderState{0, 12});
  two.next();
  const LoaderState state = two.state();
  CHECK(state == LoaderState{0, 16});
  Loader one(numbers(40), {.batch = 4, .seed = 1});
  one.set_state(state);
  CHECK(one.next()->first == 16);
  Loader three(numbers(40), {.batch = 4, .seed = 1, .rank = 2, .world_size = 3});
  three.set_state(state);
  CHECK(three.next()->first == 24);
  CHECK(three.state() == LoaderState{0, 28});
}

TEST_CASE("loader: a rank that has no batch says so, and a world or run that cannot be is refused") {
  Loader idle(numbers(3), {.batch = 4, .rank = 1, .world_size = 2});
  CHECK(idle.upcoming(1).batches == 0);
  CHECK(idle.upcoming(1).all_samples == 3);
  CHECK_THROWS_AS(idle.next(), InvalidArgument);
  idle.skip();
  CHECK(!idle.next());
  CHECK(idle.state() == LoaderState{1, 0});
  Loader busy(numbers(8), {.batch = 4, .rank = 1, .world_size = 2});
  CHECK_THROWS_AS(busy.skip(), InvalidArgument);
  CHECK_THROWS_AS(Loader(numbers(8), {.rank = 2, .world_size = 2}), InvalidArgument);
  CHECK_THROWS_AS(Loader(numbers(8), {.rank = 0, .world_size = 2, .run = 0}), InvalidArgument);
}
