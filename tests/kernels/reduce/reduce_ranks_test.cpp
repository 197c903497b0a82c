// ReduceRanks on the CPU against sums written out, and what it refuses.
#include <refrain/kernels/reduce/reduce_ranks.h>
#include <refrain/tests/support/half.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

TEST_CASE("reduce_ranks: parts are added in rank order, wherever this rank stands") {
  // In f32 (2^24 + 1) + 1 is 2^24, 2^24 + (1 + 1) is not: the order shows.
  for (int big = 0; big < 3; ++big) {
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<double> order(3, 1);
      order[std::size_t(big)] = 0x1p24;
      const double own = order[std::size_t(rank)];
      order.erase(order.begin() + rank);
      const Tensor out = full({1}, 0, DType::f32);
      launch(ReduceRanks{.own = tensor_of({own}, {1}, DType::f32), .others = tensor_of(order, {2, 1}, DType::f32), .rank = rank,
                         .op = ReduceOp::sum, .out = out});
      CHECK(out.item() == (big == 2 ? 0x1p24 + 2 : 0x1p24));
    }
  }
}

TEST_CASE("reduce_ranks: 16-bit sums and means are rounded once") {
  // 2049 is no f16 number, and neither is the sum of any two of these.
  const Tensor own = tensor_of({2048}, {1}, DType::f16), others = tensor_of({1, 1, 1}, {3, 1}, DType::f16), out = full({1}, 0, DType::f16);
  launch(ReduceRanks{.own = own, .others = others, .rank = 0, .op = ReduceOp::sum, .out = out});
  CHECK(out.item() == 2052);  // 2051, halfway, to even
  launch(ReduceRanks{.own = own, .others = others, .rank = 0, .op = ReduceOp::mean, .out = out});
  CHECK(out.item() == 513);  // 512.75 to the nearest half
}

TEST_CASE("reduce_ranks: any number of threads, rows apart, in place") {
  const std::int64_t n = 100'003;
  const Tensor all = random_tensor({3, n + 5}, DType::f32, 1), others = Tensor(all.storage(), all.device(), DType::f32, {3, n}, {n + 5, 1}, 2);
  const Tensor own = random_tensor({n}, DType::f32, 2);
  const std::vector<double> a = own.to_vector<double>(), b = others.to_vector<double>();
  CHECK(same_on_all_threads([&] {
    const Tensor out = contiguous_values(own).without_autograd(), copy = full({n}, 0, DType::f32);
    copy_values(copy, out);
    launch(ReduceRanks{.own = copy, .others = others, .rank = 2, .op = ReduceOp::sum, .out = copy});
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{40'000}, n - 1}) {
      const std::size_t at = std::size_t(i);
      CHECK(copy.to_vector<float>()[at] == ((float(b[at]) + float(b[at + n])) + float(a[at])) + float(b[at + 2 * n]));
    }
    return std::vector<Tensor>{copy};
  }));
}

TEST_CASE("reduce_ranks: errors name what was expected") {
  const Tensor f = full({4}, 1, DType::f32), i = full({4}, 1, DType::i64), b = full({4}, 1, DType::boolean);
  const auto message = [](const Tensor& own, const Tensor& others, int rank, ReduceOp op) {
    return message_of([&] { launch(ReduceRanks{.own = own, .others = others, .rank = rank, .op = op, .out = own}); });
  };
  CHECK(message(f, full({2, 3}, 1, DType::f32), 0, ReduceOp::sum) == "reduce_ranks: others must be [ranks - 1, 4], got [2, 3]");
  CHECK(message(f, full({2, 4}, 1, DType::f16), 0, ReduceOp::sum) == "reduce_ranks: others must be f32, got f16");
  CHECK(message(f, full({2, 4}, 1, DType::f32), 3, ReduceOp::sum) == "reduce_ranks: rank 3 of 3");
  CHECK(message(i, full({1, 4}, 1, DType::i64), 0, ReduceOp::mean) == "reduce_ranks: a mean is for floating dtypes, got i64");
  CHECK(message(b, full({1, 4}, 1, DType::boolean), 0, ReduceOp::sum) == "reduce_ranks: bool has a max only");
}
