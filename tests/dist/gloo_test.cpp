// Collectives on 2, 3 and 4 ranks: values, bits, sizes, scratch, order.
#ifdef REFRAIN_HAS_GLOO

#include "gloo_ranks.h"

#include <refrain/tests/support/catch.h>

#include <cmath>
#include <cstring>
#include <mutex>

namespace refrain {

namespace {

using testing::gloo_ranks;

// Rank r's value of element i: of many magnitudes, so that the order of additions shows.
double value_of(int rank, std::int64_t i) {
  const std::int64_t mixed = (i * 2654435761LL + rank * 40503LL) % 1000003;
  static constexpr double kScales[] = {1e-3, 1e-2, 1e-1, 1, 10, 100, 1000};
  return (double(mixed) / 500000 - 1) * kScales[(i + rank) % 7];
}

Tensor make(const Device& device, DType dtype, std::int64_t count, int rank) {
  const Tensor t = empty({count}, dtype, device);
  dispatch_all(dtype, [&]<class T>(T) {
    T* values = t.data<T>();
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, bool>)
        values[i] = (i + rank) % 3 == 0;
      else if constexpr (std::is_integral_v<T>)
        values[i] = T(i * 7 + rank * 31);
      else
        values[i] = T(float(value_of(rank, i)));
    }
  });
  return t;
}

// What one process gets that adds the ranks' tensors in rank order.
template <class T>
T expected(ReduceOp op, int world_size, const std::vector<Tensor>& of, std::int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    bool any = false;
    for (const Tensor& t : of) any = any || t.data<T>()[i];
    return any;
  } else if constexpr (std::is_integral_v<T>) {
    T sum = of[0].data<T>()[i];
    for (std::size_t r = 1; r < of.size(); ++r)
      sum = op == ReduceOp::max ? std::max(sum, of[r].data<T>()[i]) : T(sum + of[r].data<T>()[i]);
    return sum;
  } else {
    using A = accumulator_t<T>;
    A sum = A(of[0].data<T>()[i]);
    for (std::size_t r = 1; r < of.size(); ++r) {
      const A value = A(of[r].data<T>()[i]);
      sum = op == ReduceOp::max ? std::max(sum, value) : sum + value;
    }
    return T(op == ReduceOp::mean ? sum / A(world_size) : sum);
  }
}

std::vector<Tensor> everybodys(DType dtype, std::int64_t count, int world_size) {
  std::vector<Tensor> all;
  for (int r = 0; r < world_size; ++r) all.push_back(make(Device::cpu(), dtype, count, r));
  return all;
}

std::int64_t num_wrong(const Tensor& result, ReduceOp op, const std::vector<Tensor>& of, std::int64_t begin = 0) {
  std::int64_t wrong = 0;
  dispatch_all(result.dtype(), [&]<class T>(T) {
    for (std::int64_t i = 0; i < result.numel(); ++i) {
      const T value = expected<T>(op, int(of.size()), of, begin + i);
      wrong += std::memcmp(&value, result.data<T>() + i, sizeof(T)) != 0;
    }
  });
  return wrong;
}

// Catch's assertions are for one thread.
class Count {
 public:
  void add(std::int64_t wrong) {
    const std::lock_guard lock(mutex_);
    total_ += wrong;
  }
  std::int64_t total() const { return total_; }

 private:
  std::mutex mutex_;
  std::int64_t total_ = 0;
};

}  // namespace

TEST_CASE("all_reduce: the bits of one process that adds in rank order, for every dtype and size") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    gloo_ranks(world_size, [&](ProcessGroup& group) {
      for (const DType dtype :
           {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean})
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
          if (!is_floating(dtype) && op == ReduceOp::mean) continue;
          if (dtype == DType::boolean && op == ReduceOp::sum) continue;
          for (const std::int64_t count : {0, 1, 3, 1000, 40'001}) {
            const Tensor t = make(group.device(), dtype, count, group.rank());
            group.all_reduce(t, op).wait();
            wrong.add(num_wrong(t, op, everybodys(dtype, count, world_size)));
          }
        }
    });
    CHECK(wrong.total() == 0);
  }
}

TEST_CASE("all_reduce: several rounds, in flight together, are waited for in any order") {
  Count wrong;
  const std::int64_t count = 3'300'003;  // 13 MB: more than a slot
  gloo_ranks(3, [&](ProcessGroup& group) {
    const Tensor large = make(group.device(), DType::f32, count, group.rank()),
                 small = make(group.device(), DType::f32, 5, group.rank()),
                 half = make(group.device(), DType::bf16, 600'000, group.rank());
    Work first = group.all_reduce(large, ReduceOp::sum), second = group.all_reduce(small, ReduceOp::mean),
         third = group.all_reduce(half, ReduceOp::mean);
    third.wait();
    second.wait();
    first.wait();
    first.wait();  // a second time changes nothing
    wrong.add(num_wrong(large, ReduceOp::sum, everybodys(DType::f32, count, 3)));
    wrong.add(num_wrong(small, ReduceOp::mean, everybodys(DType::f32, 5, 3)));
    wrong.add(num_wrong(half, ReduceOp::mean, everybodys(DType::bf16, 600'000, 3)));
    wrong.add(group.device().live_bytes(MemoryKind::communication));
  });
  CHECK(wrong.total() == 0);
}

TEST_CASE("reduce_scatter and all_gather: uneven and empty pieces, in place and apart") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    const std::vector<std::vector<std::int64_t>> cuts{{5, 0, 7, 1}, {0, 3, 0, 0}, {0, 0, 0, 0}, {560'000, 1, 0, 70'000}};
    gloo_ranks(world_size, [&](ProcessGroup& group) {
      for (std::vector<std::int64_t> counts : cuts)
        for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
          counts.resize(std::size_t(world_size));
          if (counts[0] > 1000 && dtype != DType::f32) continue;
          std::int64_t total = 0, begin = 0;
          for (int r = 0; r < world_size; ++r) {
            if (r == group.rank()) begin = total;
            total += counts[std::size_t(r)];
          }
          const std::int64_t own = counts[std::size_t(group.rank())];
          const std::vector<Tensor> all = everybodys(dtype, total, world_size);
          const ReduceOp op = dtype == DType::f32 ? ReduceOp::mean : ReduceOp::sum;
          const Tensor in = make(group.device(), dtype, total, group.rank());
          const Tensor apart = empty({own}, dtype, group.device());
          const Tensor inside(in.storage(), in.device(), dtype, {own}, {1}, begin);
          group.reduce_scatter(in, apart, counts, op).wait();
          wrong.add(num_wrong(apart, op, all, begin));
          group.reduce_scatter(in, inside, counts, op).wait();
          wrong.add(num_wrong(inside, op, all, begin));

          const Tensor out = zeros({total}, dtype, group.device());
          group.all_gather(apart, out, counts).wait();
          wrong.add(num_wrong(out, op, all));
          group.all_gather(inside, in, counts).wait();
          wrong.add(num_wrong(in, op, all));
        }
    });
    CHECK(wrong.total() == 0);
  }
}

TEST_CASE("broadcast, send, receive and barrier: every root, both directions at once, tags apart") {
  for (const int world_size : {2, 3, 4}) {
    Count wrong;
    gloo_ranks(world_size, [&](ProcessGroup& group) {
      const int rank = group.rank(), next = (rank + 1) % world_size, before = (rank + world_size - 1) % world_size;
      for (int root = 0; root < world_size; ++root) {
        const Tensor t = make(group.device(), DType::f32, 1000, rank);
        group.broadcast(t, root).wait();
        wrong.add(num_wrong(t, ReduceOp::sum, {make(Device::cpu(), DType::f32, 1000, root)}));
      }
      const Tensor out = make(group.device(), DType::u8, 300'000, rank), in = zeros({300'000}, DType::u8, group.device()),
                   small = make(group.device(), DType::i64, 2, rank + 10), small_in = zeros({2}, DType::i64, group.device());
      Work sent = group.send(out, next, 1), sent_small = group.send(small, next, 2);
      group.receive(small_in, before, 2).wait();
      group.barrier();
      group.receive(in, before, 1).wait();
      sent.wait();
      sent_small.wait();
      wrong.add(num_wrong(in, ReduceOp::sum, {make(Device::cpu(), DType::u8, 300'000, before)}));
      wrong.add(num_wrong(small_in, ReduceOp::sum, {make(Device::cpu(), DType::i64, 2, before + 10)}));
    });
    CHECK(wrong.total() == 0);
  }
}

TEST_CASE("scratch and bytes sent: what a planned group takes of an arena, the run's takes") {
  const auto program = [](ProcessGroup& group) {
    const Device& device = group.device();
    const Tensor large = empty({3'000'001}, DType::f32, device), half = empty({700'000}, DType::f16, device),
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
    counts[1] = 1'000'000;
    const Tensor out = empty({counts[std::size_t(group.rank())]}, DType::f32, device);
    const Tensor in = zeros({1'000'000}, DType::f32, device);
    group.reduce_scatter(in, out, counts, ReduceOp::sum).wait();
    return std::vector<std::int64_t>{device.peak_bytes(), device.reserved_bytes(), group.bytes_sent(),
                                     device.ledger().peak_per_kind()[std::size_t(MemoryKind::communication)]};
  };
  for (const int world_size : {2, 4}) {
    std::vector<std::vector<std::int64_t>> runs(static_cast<std::size_t>(world_size));
    gloo_ranks(world_size, [&](ProcessGroup& group) { runs[std::size_t(group.rank())] = program(group); });
    for (int rank = 0; rank < world_size; ++rank) {
      const auto group = planned_group(Device::plan(), rank, world_size);
      CHECK(program(*group) == runs[std::size_t(rank)]);
      CHECK(runs[std::size_t(rank)][3] > 0);
    }
  }
}

TEST_CASE("a NaN on any rank is the max; integers wrap") {
  Count wrong;
  gloo_ranks(3, [&](ProcessGroup& group) {
    const Tensor t = full({3}, group.rank(), DType::f32, group.device());
    t.data<float>()[group.rank()] = std::nanf("");
    group.all_reduce(t, ReduceOp::max).wait();
    for (const float value : t.to_vector<float>()) wrong.add(!std::isnan(value));
    const Tensor bytes = full({2}, 200, DType::u8, group.device());
    group.all_reduce(bytes, ReduceOp::sum).wait();
    wrong.add(bytes.data<std::uint8_t>()[1] != (600 & 255));
  });
  CHECK(wrong.total() == 0);
}

}  // namespace refrain

#endif  // REFRAIN_HAS_GLOO
