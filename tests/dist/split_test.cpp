// Groups of some of a group's ranks: a mesh of ranks, its axes at work at the same time.
#include "gloo_ranks.h"

#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/thread_group.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

namespace refrain {

namespace {

// Four ranks as two rows of two.
std::vector<int> row_of(int rank) { return {rank / 2 * 2, rank / 2 * 2 + 1}; }
std::vector<int> column_of(int rank) { return {rank % 2, rank % 2 + 2}; }

Tensor of(const ProcessGroup& group, std::int64_t count, double value) { return full({count}, value, DType::f32, group.device()); }

bool is_all(const Tensor& t, float value) {
  const std::vector<float> values = t.to_vector<float>();
  return std::all_of(values.begin(), values.end(), [&](float v) { return v == value; });
}

// What is wrong with a mesh of these four ranks; Catch's assertions are for one thread.
int num_wrong(ProcessGroup& world) {
  int wrong = 0;
  const auto expect = [&](bool is_right) { wrong += !is_right; };
  const int rank = world.rank();
  const auto row = world.split(row_of(rank)), column = world.split(column_of(rank));
  expect(row->rank() == rank % 2 && column->rank() == rank / 2 && row->world_size() == 2 && column->world_size() == 2);

  // Half of the ranks begin in the row, half in the column, and the world's own call stands between.
  for (const std::int64_t count : {3, 5000, 400'000}) {
    const Tensor a = of(world, count, 1 << rank), b = of(world, count, 1 << rank), c = of(world, count, 1 << rank);
    std::vector<Work> works;
    const auto in_row = [&] { works.push_back(row->all_reduce(a, ReduceOp::sum)); };
    const auto in_column = [&] { works.push_back(column->all_reduce(b, ReduceOp::sum)); };
    if (rank % 3 == 0) in_row();
    if (rank % 3 != 0) in_column();
    works.push_back(world.all_reduce(c, ReduceOp::sum));
    if (rank % 3 != 0) in_row();
    if (rank % 3 == 0) in_column();
    std::rotate(works.begin(), works.begin() + rank % 3, works.end());
    for (Work& work : works) work.wait();
    expect(is_all(a, rank < 2 ? 3 : 12));
    expect(is_all(b, rank % 2 == 0 ? 5 : 10));
    expect(is_all(c, 15));
  }

  // Ranks are the group's own, in the order of the list.
  const auto turned = world.split(std::vector<int>{3, 1, 0, 2});
  expect(turned->rank() == std::vector<int>{2, 1, 3, 0}[std::size_t(rank)]);
  const Tensor gathered = of(world, 4, -1);
  turned->all_gather(of(world, 1, rank), gathered, std::vector<std::int64_t>(4, 1)).wait();
  expect(gathered.to_vector<float>() == std::vector<float>{3, 1, 0, 2});
  const Tensor from_three = of(world, 2, rank);
  turned->broadcast(from_three, 0).wait();
  expect(is_all(from_three, 3));
  const Tensor in = of(world, 3, rank), piece = of(world, rank % 2 == 0 ? 1 : 2, 0);
  row->reduce_scatter(in, piece, std::vector<std::int64_t>{1, 2}, ReduceOp::mean).wait();
  expect(is_all(piece, rank < 2 ? 0.5f : 2.5f));

  // Point to point, with one tag in all groups at once; parts of parts; and of one rank, where a reduction is a copy.
  const Tensor to_row = of(world, 7, rank), to_column = of(world, 7, 10 + rank), row_in = of(world, 7, -1), column_in = of(world, 7, -1);
  Work sent = row->send(to_row, 1 - row->rank(), 5), sent_too = column->send(to_column, 1 - column->rank(), 5);
  column->receive(column_in, 1 - column->rank(), 5).wait();
  row->receive(row_in, 1 - row->rank(), 5).wait();
  sent.wait();
  sent_too.wait();
  expect(is_all(row_in, float(rank ^ 1)) && is_all(column_in, float(10 + (rank ^ 2))));
  const auto pair = turned->split(rank == 0 || rank == 3 ? std::vector<int>{2, 0} : std::vector<int>{1, 3});  // {0, 3}, {1, 2}
  const Tensor summed = of(world, 9, 1 << rank);
  pair->all_reduce(summed, ReduceOp::sum).wait();
  expect(is_all(summed, rank == 0 || rank == 3 ? 9 : 6));
  expect(pair->rank() == (rank == 3 || rank == 2 ? 1 : 0));
  const auto alone = pair->split(std::vector<int>{pair->rank()});
  const Tensor out = of(world, 3, -1);
  alone->reduce_scatter(in, out, std::vector<std::int64_t>{3}, ReduceOp::mean).wait();
  alone->all_reduce(out, ReduceOp::sum).wait();
  alone->barrier();
  expect(is_all(out, float(rank)) && alone->bytes_sent() == 0);

  expect(row->bytes_sent() == (rank % 2 == 0 ? 8 : 4) + 28 + 12 + 5000 * 4 + 400'000 * 4);
  row->barrier();
  world.barrier();
  return wrong;
}

struct Heard {
  std::mutex mutex;
  std::vector<std::string> texts;
  void add(std::string text) {
    const std::lock_guard lock(mutex);
    texts.push_back(std::move(text));
  }
};

}  // namespace

TEST_CASE("split: four ranks as a mesh, calls of both axes and of the world under way at once, of ranks that are threads") {
  std::atomic<int> wrong = 0;
  testing::run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) { wrong += num_wrong(*world); });
  CHECK(wrong == 0);
}

TEST_CASE("split: a list that is wrong, or another on another rank, is an error on all") {
  Heard heard;
  const auto lists = [&](ProcessGroup& world) {
    const int rank = world.rank();
    const auto attempt = [&](std::vector<int> ranks) {
      try {
        (void)world.split(ranks);
      } catch (const InvalidArgument& error) {
        heard.add(error.what());
      }
    };
    attempt({0, 1, 2, 3});
    attempt({rank, rank});
    attempt({(rank + 1) % 3});
    attempt(rank == 2 ? std::vector<int>{2} : std::vector<int>{0, 1, 2});
    world.barrier();
  };
  testing::run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) { lists(*world); });
  REQUIRE(heard.texts.size() == 12);
  std::sort(heard.texts.begin(), heard.texts.end());
  CHECK(heard.texts[0] == "split: rank 0 comes twice");
  CHECK(heard.texts[1] == "split: rank 0 is not in its own list");
  CHECK(heard.texts[4] == "split: rank 0 makes a group with rank 2, whose own list is another");
  CHECK(heard.texts[2] == heard.texts[4]);
  CHECK(heard.texts[9] == "split: rank 3 of a world of 3");
}

TEST_CASE("split: a world of one, and a planned world of any size") {
  const auto alone = single_group(Device::cpu());
  CHECK(alone->split(std::vector<int>{0})->world_size() == 1);
  const auto planned = planned_group(Device::plan(), 5, 8);
  const auto column = planned->split(std::vector<int>{1, 5});
  CHECK(column->rank() == 1);
  CHECK(column->world_size() == 2);
  CHECK(column->split(std::vector<int>{1})->world_size() == 1);
}

#ifdef REFRAIN_HAS_GLOO

TEST_CASE("split: four ranks as a mesh over Gloo's connections, in check mode too") {
  for (const bool check_every_call : {false, true}) {
    GroupOptions options;
    options.check_every_call = check_every_call;
    std::atomic<int> wrong = 0;
    testing::gloo_ranks(4, [&](ProcessGroup& world) { wrong += num_wrong(world); }, options);
    CHECK(wrong == 0);
  }
}

TEST_CASE("split: what a planned mesh takes of an arena, the run's takes") {
  const auto program = [](ProcessGroup& world) {
    const Device& device = world.device();
    device.reset_peak();
    const auto row = world.split(row_of(world.rank())), column = world.split(column_of(world.rank()));
    const Tensor large = empty({3'000'001}, DType::f32, device), small = empty({700'000}, DType::f16, device);
    if (device.has_bytes())
      for (const Tensor& t : {large, small}) fill_values(t, 1);
    Work a = row->all_reduce(large, ReduceOp::mean), b = column->all_reduce(small, ReduceOp::sum);
    a.wait();
    b.wait();
    return std::vector<std::int64_t>{device.peak_bytes(), device.reserved_bytes(), world.bytes_sent(), row->bytes_sent(),
                                     column->bytes_sent(),
                                     device.ledger().peak_per_kind()[std::size_t(MemoryKind::communication)]};
  };
  std::vector<std::vector<std::int64_t>> runs(4);
  testing::gloo_ranks(4, [&](ProcessGroup& world) { runs[std::size_t(world.rank())] = program(world); });
  for (int rank = 0; rank < 4; ++rank) CHECK(program(*planned_group(Device::plan(), rank, 4)) == runs[std::size_t(rank)]);
}

TEST_CASE("split: who aborts one group ends all, and calls that differ are named by the world's ranks") {
  Heard heard;
  const auto end = [&](const std::function<void(ProcessGroup& world, ProcessGroup& row, ProcessGroup& column)>& f) {
    heard.texts.clear();
    testing::gloo_ranks(4, [&](ProcessGroup& world) {
      const auto row = world.split(row_of(world.rank())), column = world.split(column_of(world.rank()));
      world.set_step(1);
      try {
        f(world, *row, *column);
      } catch (const Error& error) {
        heard.add(concat("at ", world.rank(), ": ", error.what()));
      }
    });
    std::sort(heard.texts.begin(), heard.texts.end());
  };
  const auto has = [&](std::size_t i, const std::string& part) {
    INFO(heard.texts.at(i));
    CHECK(heard.texts.at(i).find(part) != std::string::npos);
  };
  end([](ProcessGroup& world, ProcessGroup& row, ProcessGroup& column) {
    world.barrier();
    if (world.rank() == 3) return column.abort("the disk is full");
    row.barrier();
    column.barrier();
    world.barrier();
  });
  REQUIRE(heard.texts.size() == 3);
  has(0, "at 0: rank 3 (");
  has(2, "at 2: rank 3 (");
  has(2, "the disk is full");

  end([](ProcessGroup& world, ProcessGroup& row, ProcessGroup&) {
    const std::int64_t count = world.rank() == 3 ? 4 : 5;
    const Tensor t = zeros({count}, DType::f32, world.device());
    if (world.rank() >= 2) row.all_reduce(t, ReduceOp::sum).wait();
    world.barrier();
  });
  REQUIRE(heard.texts.size() == 4);
  has(2, "the ranks' calls differ: rank 2's call 1 is all_reduce(sum) of 5 f32 among ranks 2, 3, rank 3's call 1 is all_reduce(sum) "
         "of 4 f32 among ranks 2, 3, step 1");
  has(3, "the ranks' calls differ: rank 2's call 1 is");
  has(0, "is lost: it ended the group");
}

#endif  // REFRAIN_HAS_GLOO

}  // namespace refrain
