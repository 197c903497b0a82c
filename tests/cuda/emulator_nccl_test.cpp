// Collectives on 2, 3 and 4 emulated GPUs over the fake of NCCL: the CPU's bits, sizes, scratch, order. Named after the emulator,
// since one real GPU makes no group.
#include <refrain/core/cuda/backend.h>
#include <refrain/dist/call.h>
#include <refrain/kernels/emulator/libraries/nccl.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/reduce/reduce_ranks.h>
#include <refrain/tests/cuda/nccl_ranks.h>
#include <refrain/tests/cuda/layouts.h>

#include <cstring>

using namespace refrain;

namespace {

// Rank r's tensor, of many magnitudes, so that the order of additions shows. On the CPU.
Tensor values_of(int rank, DType dtype, std::int64_t count) {
  std::vector<double> values = random_values(count, std::uint64_t(rank) + 1, -100, 100);
  static constexpr double kScales[] = {1e-3, 1e-1, 1, 10, 100};
  if (is_floating(dtype)) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= kScales[(i + std::size_t(rank)) % 5];
    return tensor_of(values, {count}, dtype);
  }
  std::vector<std::int64_t> whole;
  for (const double v : values) whole.push_back(std::int64_t(v));
  return as(from_values(whole, {count}), dtype);
}

// What the CPU makes of all ranks' tensors.
Tensor expected(ReduceOp op, int world_size, DType dtype, std::int64_t count, std::int64_t begin = 0, std::int64_t end = -1) {
  const Tensor out = empty({count}, dtype);
  std::vector<Tensor> all;
  std::vector<const std::byte*> parts;
  for (int r = 0; r < world_size; ++r) all.push_back(values_of(r, dtype, count)), parts.push_back(all.back().address());
  detail::reduce_ranks(dtype, op, parts, out.address(), count);
  return view::slice(out, 0, begin, end < 0 ? count : end);
}

Tensor to_group(const ProcessGroup& group, const Tensor& t) { return to_device(t, group.device()); }

int is_wrong(const Tensor& got, const Tensor& wanted) { return same_bits(on_cpu(got), wanted) ? 0 : 1; }

}  // namespace

TEST_CASE("nccl all_reduce: the CPU's bits, for every dtype, operator and size") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    nccl_ranks(world_size, [&](ProcessGroup& group) {
      for (const DType dtype : kAllDTypes)
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
          if (!is_floating(dtype) && op == ReduceOp::mean) continue;
          if (dtype == DType::boolean && op == ReduceOp::sum) continue;
          for (const std::int64_t count : {0, 1, 3, 1000, 20'001}) {
            const Tensor t = to_group(group, values_of(group.rank(), dtype, count));
            group.all_reduce(t, op).wait();
            wrong.add(is_wrong(t, expected(op, world_size, dtype, count)));
          }
        }
    });
    CHECK(wrong.total() == 0);
  }
  CHECK(emulator::nccl_record().num_communicators == 0);
}

TEST_CASE("nccl all_reduce: several rounds, in flight together, are waited for in any order") {
  Count wrong;
  const std::int64_t count = 1'800'003;  // 7 MB: more than a slot
  nccl_ranks(3, [&](ProcessGroup& group) {
    const auto on = [&](DType dtype, std::int64_t n) { return to_group(group, values_of(group.rank(), dtype, n)); };
    const Tensor large = on(DType::f32, count), small = on(DType::f32, 5), half = on(DType::bf16, 50'000);
    wrong.add(detail::rounds_of({.kind = detail::CallKind::all_reduce, .in = large, .counts = {count / 3, count / 3, count / 3}}, 3)
                      .num_rounds < 2);
    Work first = group.all_reduce(large, ReduceOp::sum), second = group.all_reduce(small, ReduceOp::mean),
         third = group.all_reduce(half, ReduceOp::mean);
    third.wait();
    second.wait();
    first.wait();
    first.wait();  // a second time changes nothing
    wrong.add(is_wrong(large, expected(ReduceOp::sum, 3, DType::f32, count)));
    wrong.add(is_wrong(small, expected(ReduceOp::mean, 3, DType::f32, 5)));
    wrong.add(is_wrong(half, expected(ReduceOp::mean, 3, DType::bf16, 50'000)));
    wrong.add(group.device().live_bytes(MemoryKind::communication));
  });
  CHECK(wrong.total() == 0);
}

TEST_CASE("nccl reduce_scatter and all_gather: uneven and empty pieces, in place and apart") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    const std::vector<std::vector<std::int64_t>> cuts{{5, 0, 7, 1}, {0, 3, 0, 0}, {0, 0, 0, 0}, {20'000, 1, 0, 7'000}};
    nccl_ranks(world_size, [&](ProcessGroup& group) {
      for (std::vector<std::int64_t> counts : cuts)
        for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
          counts.resize(std::size_t(world_size));
          const std::vector<std::int64_t> offsets = detail::offsets_of(counts);
          const std::int64_t total = offsets.back(), begin = offsets[std::size_t(group.rank())], own = counts[std::size_t(group.rank())];
          const ReduceOp op = dtype == DType::f32 ? ReduceOp::mean : ReduceOp::sum;
          const Tensor in = to_group(group, values_of(group.rank(), dtype, total)), apart = empty({own}, dtype, group.device());
          const Tensor inside(in.storage(), in.device(), dtype, {own}, {1}, begin);
          group.reduce_scatter(in, apart, counts, op).wait();
          wrong.add(is_wrong(apart, expected(op, world_size, dtype, total, begin, begin + own)));
          group.reduce_scatter(in, inside, counts, op).wait();
          wrong.add(is_wrong(inside, expected(op, world_size, dtype, total, begin, begin + own)));

          const Tensor out = zeros({total}, dtype, group.device());
          group.all_gather(apart, out, counts).wait();
          wrong.add(is_wrong(out, expected(op, world_size, dtype, total)));
          group.all_gather(inside, in, counts).wait();
          wrong.add(is_wrong(in, expected(op, world_size, dtype, total)));
        }
    });
    CHECK(wrong.total() == 0);
  }
}

TEST_CASE("nccl broadcast, send, receive and barrier: every root, both directions at once, tags apart") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    nccl_ranks(world_size, [&](ProcessGroup& group) {
      const int rank = group.rank(), next = (rank + 1) % world_size, before = (rank + world_size - 1) % world_size;
      for (int root = 0; root < world_size; ++root) {
        const Tensor t = to_group(group, values_of(rank, DType::f32, 1000));
        group.broadcast(t, root).wait();
        wrong.add(is_wrong(t, values_of(root, DType::f32, 1000)));
      }
      const Tensor out = to_group(group, values_of(rank, DType::u8, 3000)), in = zeros({3000}, DType::u8, group.device()),
                   small = to_group(group, values_of(rank, DType::i64, 2)), small_in = zeros({2}, DType::i64, group.device());
      // Ranks call the messages of one wait in orders of their own.
      std::vector<Work> works;
      if (rank % 2 == 0) works.push_back(group.send(out, next, 1));
      works.push_back(group.receive(small_in, before, 2));
      works.push_back(group.send(small, next, 2));
      if (rank % 2 == 1) works.push_back(group.send(out, next, 1));
      works.push_back(group.receive(in, before, 1));
      wrong.add(works[0].is_done());
      group.barrier();
      for (Work& work : works) work.wait();
      wrong.add(is_wrong(in, values_of(before, DType::u8, 3000)));
      wrong.add(is_wrong(small_in, values_of(before, DType::i64, 2)));
    });
    CHECK(wrong.total() == 0);
  }
}

TEST_CASE("nccl: scratch and bytes sent are the plan's") {
  const auto program = [](ProcessGroup& group) {
    const Device& device = group.device();
    const Tensor large = empty({1'500'001}, DType::f32, device), half = empty({100'000}, DType::f16, device),
                 small = empty({9}, DType::f64, device);
    if (device.has_bytes())
      for (const Tensor& t : {large, half, small}) fill_values(t, 1);
    device.reset_peak();
    Work a = group.all_reduce(large, ReduceOp::mean), b = group.all_reduce(half, ReduceOp::sum);
    a.wait();
    Work c = group.all_reduce(small, ReduceOp::max);
    b.wait();
    c.wait();
    std::vector<std::int64_t> counts(std::size_t(group.world_size()), 0);
    counts[1] = 50'000;
    const Tensor out = empty({counts[std::size_t(group.rank())]}, DType::f32, device);
    const Tensor in = zeros({50'000}, DType::f32, device);
    group.reduce_scatter(in, out, counts, ReduceOp::sum).wait();
    return std::vector<std::int64_t>{device.peak_bytes(), group.bytes_sent(),
                                     device.ledger().peak_per_kind()[std::size_t(MemoryKind::communication)]};
  };
  for (const int world_size : {2, 4}) {
    std::vector<std::vector<std::int64_t>> runs(static_cast<std::size_t>(world_size));
    nccl_ranks(world_size, [&](ProcessGroup& group) { runs[std::size_t(group.rank())] = program(group); });
    for (int rank = 0; rank < world_size; ++rank) {
      const auto group = planned_group(Device::plan(DeviceKind::cuda), rank, world_size);
      CHECK(program(*group) == runs[std::size_t(rank)]);
      CHECK(runs[std::size_t(rank)][2] > 0);
    }
  }
}

TEST_CASE("nccl split: rows and columns of a mesh are at work at once, in orders of their own; parts of parts, and of one rank") {
  Count wrong;
  nccl_ranks(4, [&](ProcessGroup& world) {
    const int rank = world.rank();
    const auto row = world.split(std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}),
               column = world.split(std::vector<int>{rank % 2, rank % 2 + 2});
    const auto of = [&](double value, std::int64_t count) { return full({count}, value, DType::f32, world.device()); };
    const auto is_all = [](const Tensor& t, float value) {
      const std::vector<float> values = t.to_vector<float>();
      return std::all_of(values.begin(), values.end(), [&](float v) { return v == value; });
    };
    for (const std::int64_t count : {3, 20'000}) {
      const Tensor a = of(1 << rank, count), b = of(1 << rank, count), c = of(1 << rank, count);
      std::vector<Work> works;
      if (rank % 3 == 0) works.push_back(row->all_reduce(a, ReduceOp::sum));
      if (rank % 3 != 0) works.push_back(column->all_reduce(b, ReduceOp::sum));
      works.push_back(world.all_reduce(c, ReduceOp::sum));
      if (rank % 3 != 0) works.push_back(row->all_reduce(a, ReduceOp::sum));
      if (rank % 3 == 0) works.push_back(column->all_reduce(b, ReduceOp::sum));
      std::rotate(works.begin(), works.begin() + rank % 3, works.end());
      for (Work& work : works) work.wait();
      wrong.add(!is_all(a, rank < 2 ? 3 : 12));
      wrong.add(!is_all(b, rank % 2 == 0 ? 5 : 10));
      wrong.add(!is_all(c, 15));
    }
    const auto turned = world.split(std::vector<int>{3, 1, 0, 2});
    const Tensor gathered = of(-1, 4);
    turned->all_gather(of(rank, 1), gathered, std::vector<std::int64_t>(4, 1)).wait();
    wrong.add(gathered.to_vector<float>() != std::vector<float>{3, 1, 0, 2});
    const auto alone = row->split(std::vector<int>{row->rank()});
    const Tensor out = of(-1, 4);
    alone->reduce_scatter(gathered, out, std::vector<std::int64_t>{4}, ReduceOp::mean).wait();
    wrong.add(out.to_vector<float>() != std::vector<float>{3, 1, 0, 2});
    alone->barrier();
    world.barrier();
  });
  CHECK(wrong.total() == 0);
  CHECK(emulator::nccl_record().num_communicators == 0);
}

TEST_CASE("cuda graphs: a collective over NCCL ends the graph's section and sees what was computed before") {
  Count wrong;
  nccl_ranks(2, [&](ProcessGroup& group) {
    const Tensor t = full({5000}, 1, DType::f32, group.device());
    for (int step = 0; step < 3; ++step) {
      CudaGraphScope graphs(group.device());
      fill_values(t, group.rank() + step);
      Work work = group.all_reduce(t, ReduceOp::sum);
      const Tensor other = full({64}, step, DType::f32, group.device());  // in the next section, beside the collective
      work.wait();
      graphs.finish();
      wrong.add(t.to_vector<float>()[4999] != float(2 * step + 1));
      wrong.add(other.to_vector<float>()[63] != float(step));
    }
    wrong.add(cuda_graph_counts(group.device()).launches == 0);
  });
  CHECK(wrong.total() == 0);
}

TEST_CASE("nccl: work that runs as late as is allowed gives the same") {
  const bool was_deferred = std::exchange(emulator::options().is_deferred, true);
  Count wrong;
  nccl_ranks(2, [&](ProcessGroup& group) {
    const Tensor t = to_group(group, values_of(group.rank(), DType::f32, 30'000));
    Work work = group.all_reduce(t, ReduceOp::mean);
    work.wait();
    wrong.add(is_wrong(t, expected(ReduceOp::mean, 2, DType::f32, 30'000)));
  });
  emulator::options().is_deferred = was_deferred;
  CHECK(wrong.total() == 0);
}
