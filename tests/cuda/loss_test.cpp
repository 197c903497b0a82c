// The CUDA losses against the CPU's: bit for bit where arithmetic is per element, sums have one order or are exact, within the
// roundings of their sums elsewhere.
#include <refrain/kernels/loss/loss.h>
#include <refrain/tests/cuda/row_tensors.h>

using namespace refrain;

namespace {

constexpr std::int64_t kIgnore = -100;
constexpr double kRange = 8;  // of the logits: largest - smallest
const std::vector<Shape> kShapes = {{1, 1},    {5, 10},   {3, 31},   {4, 32},   {6, 33}, {3, 197},
                                    {5, 1000}, {4, 1032}, {3, 5000}, {2, 4101}, {0, 7}};
constexpr Reduction kReductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

// Any classes, with every third row from the second ignored.
Tensor targets_for(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int64_t> targets;
  for (double v : random_values(rows, 77, 0, double(classes))) {
    targets.push_back(targets.size() % 3 == 1 ? kIgnore : std::min(std::int64_t(v), classes - 1));
  }
  return from_values(targets, {rows});
}

struct Losses {
  Tensor out, statistics, rows;
};

Losses cross_entropy(const Tensor& logits, const Tensor& targets, Reduction reduction, double smoothing, double scale,
                     bool is_cuda, std::int64_t margin = kAligned) {
  DeviceTensors on(margin);
  const Shape rows = targets.shape();
  const DType accumulator = accumulator_dtype(logits.dtype());
  const auto output = [&](const Shape& shape) { return is_cuda ? on.output(shape, accumulator) : empty(shape, accumulator); };
  const Losses l{output(reduction == Reduction::none ? rows : Shape{}), output({rows[0], 2}), output(rows)};
  launch(CrossEntropyForward{.logits = is_cuda ? on.put(logits) : logits,
                             .targets = is_cuda ? on.put(targets) : targets,
                             .ignore_index = kIgnore,
                             .label_smoothing = smoothing,
                             .reduction = reduction,
                             .scale = scale,
                             .out = l.out,
                             .statistics = l.statistics,
                             .row_losses = l.rows});
  CHECK(on.are_intact());
  return {on_cpu(l.out), on_cpu(l.statistics), on_cpu(l.rows)};
}

// What the roundings of log(sum(exp(x - max))) come to: tests/autograd/ops/precision_row_cases.cpp.
double log_error(DType dtype, std::int64_t classes) {
  return roundings_of(dtype, 2 * kRange + double(classes) + 8) +
         roundings_of(dtype, 8) * (kRange + std::log(double(classes) + 1));
}

}  // namespace

TEST_CASE("cuda cross_entropy: row losses and statistics within the roundings of their sums, the same at any address") {
  for (DType dtype : kFloating) {
    for (const Shape& shape : kShapes) {
      for (double smoothing : {0.0, 0.1}) {
        INFO(dtype << " " << concat(shape) << " smoothing " << smoothing);
        const Tensor logits = random_tensor(shape, dtype, 1, -kRange / 2, kRange / 2), targets = targets_for(shape[0], shape[1]);
        const Losses got = cross_entropy(logits, targets, Reduction::none, smoothing, 0.5, true);
        const Losses elsewhere = cross_entropy(logits, targets, Reduction::none, smoothing, 0.5, true, kMisaligned);
        CHECK(num_different(elsewhere.out, got.out) == 0);
        CHECK(num_different(elsewhere.statistics, got.statistics) == 0);
        const std::vector<double> x = logits.to_vector<double>();
        const std::vector<std::int64_t> t = targets.to_vector<std::int64_t>();
        std::vector<double> losses, statistics;
        const std::size_t classes = std::size_t(shape[1]);
        for (std::size_t r = 0; r < t.size(); ++r) {
          double largest = -HUGE_VAL, sum = 0, mean = 0;
          for (std::size_t c = 0; c < classes; ++c)
            largest = std::max(largest, x[r * classes + c]), mean += x[r * classes + c] / double(classes);
          for (std::size_t c = 0; c < classes; ++c) sum += std::exp(x[r * classes + c] - largest);
          const double lse = largest + std::log(sum);
          if (t[r] == kIgnore) largest = 0, sum = 1;
          statistics.insert(statistics.end(), {largest, std::log(sum)});
          losses.push_back(t[r] == kIgnore
                               ? 0
                               : 0.5 * ((1 - smoothing) * (lse - x[r * classes + std::size_t(t[r])]) + smoothing * (lse - mean)));
        }
        const double error = log_error(dtype, shape[1]);
        CHECK(num_outside(got.out, losses, [&](std::size_t, double) { return error; }) == 0);
        CHECK(num_outside(got.statistics, statistics, [&](std::size_t i, double) { return i % 2 == 0 ? 0 : error; }) == 0);
      }
    }
  }
}

TEST_CASE("cuda cross_entropy: a mean or sum has the bits of the CPU's sum of the same row losses, in one call or after") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (std::int64_t rows : {0, 1, 40, 2500}) {
      for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
        INFO(dtype << " " << rows << " " << name_of(reduction));
        const DType accumulator = accumulator_dtype(dtype);
        const Tensor logits = random_tensor({rows, 3}, dtype, 1, -4, 4), targets = targets_for(rows, 3);
        const Losses got = cross_entropy(logits, targets, reduction, 0, 0.75, true);
        const Tensor expected = empty({}, accumulator), after = poisoned({}, accumulator, cuda_device());
        launch(ReduceLosses{.row_losses = got.rows,
                            .targets = targets,
                            .ignore_index = kIgnore,
                            .reduction = reduction,
                            .scale = 0.75,
                            .out = expected});
        launch(ReduceLosses{.row_losses = on_cuda(got.rows),
                            .targets = on_cuda(targets),
                            .ignore_index = kIgnore,
                            .reduction = reduction,
                            .scale = 0.75,
                            .out = after});
        CHECK(num_different(got.out, expected) == 0);
        CHECK(num_different(on_cpu(after), expected) == 0);
        const Tensor grad_out = random_tensor({}, accumulator, 3), spread = empty({rows}, accumulator);
        const Tensor got_spread = poisoned({rows}, accumulator, cuda_device());
        launch(SpreadLossGradient{.grad_out = grad_out,
                                  .targets = targets,
                                  .ignore_index = kIgnore,
                                  .reduction = reduction,
                                  .scale = 0.75,
                                  .out = spread});
        launch(SpreadLossGradient{.grad_out = on_cuda(grad_out),
                                  .targets = on_cuda(targets),
                                  .ignore_index = kIgnore,
                                  .reduction = reduction,
                                  .scale = 0.75,
                                  .out = got_spread});
        CHECK(num_different(on_cpu(got_spread), spread) == 0);
      }
    }
  }
}

TEST_CASE("cuda cross_entropy_backward: the CPU's bits from the same statistics, in place as well") {
  for (DType dtype : kFloating) {
    const DType accumulator = accumulator_dtype(dtype);
    for (const Shape& shape : kShapes) {
      for (Reduction reduction : kReductions) {
        for (double smoothing : {0.0, 0.1}) {
          INFO(dtype << " " << concat(shape) << " " << name_of(reduction) << " smoothing " << smoothing);
          const Tensor logits = random_tensor(shape, dtype, 1, -kRange / 2, kRange / 2),
                       targets = targets_for(shape[0], shape[1]);
          const Tensor statistics = cross_entropy(logits, targets, reduction, smoothing, 1, false).statistics;
          const Tensor grad_out = random_tensor(reduction == Reduction::none ? Shape{shape[0]} : Shape{}, accumulator, 3),
                       expected = empty(shape, dtype);
          const auto backward = [&](const Tensor& g, const Tensor& x, const Tensor& t, const Tensor& s, const Tensor& out) {
            launch(CrossEntropyBackward{.grad_out = g,
                                        .logits = x,
                                        .targets = t,
                                        .statistics = s,
                                        .ignore_index = kIgnore,
                                        .label_smoothing = smoothing,
                                        .reduction = reduction,
                                        .scale = 0.75,
                                        .out = out});
          };
          backward(grad_out, logits, targets, statistics, expected);
          DeviceTensors on(kAligned), elsewhere(kMisaligned);
          const Tensor out = on.output(shape, dtype), in_place = elsewhere.put(logits);
          backward(on.put(grad_out), on.put(logits), on.put(targets), on.put(statistics), out);
          backward(elsewhere.put(grad_out), in_place, elsewhere.put(targets), elsewhere.put(statistics), in_place);
          CHECK(on.are_intact());
          CHECK(elsewhere.are_intact());
          CHECK(num_different(on_cpu(out), expected) == 0);
          CHECK(num_different(on_cpu(in_place), expected) == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda cross_entropy: rows of -inf cost inf, masked classes nothing; either output may be unwanted") {
  const Device cuda = cuda_device();
  for (std::int64_t classes : {5, 1100}) {
    const Tensor logits = random_tensor({3, classes}, DType::f32, 1);
    for (std::int64_t c = 0; c < classes; ++c) logits.data<float>()[c] = -HUGE_VALF;
    for (std::int64_t c = 1; c < classes; ++c) logits.data<float>()[classes + c] = -HUGE_VALF;
    logits.data<float>()[2 * classes + classes - 1] = NAN;
    const Tensor targets = from_values(std::vector<std::int64_t>{1, 0, 2}, {3});
    const Losses got = cross_entropy(logits, targets, Reduction::none, 0, 1, true);
    const std::vector<double> losses = got.out.to_vector<double>();
    CHECK((losses[0] == HUGE_VAL && losses[1] == 0 && std::isnan(losses[2])));
    CHECK(got.statistics.to_vector<double>()[0] == 0);
    CHECK(got.statistics.to_vector<double>()[1] == HUGE_VAL);
    const Tensor statistics = poisoned({3, 2}, DType::f32, cuda), out = poisoned({}, DType::f32, cuda),
                 rows = poisoned({3}, DType::f32, cuda);
    const auto forward = [&](const Tensor& loss, const Tensor& saved) {
      launch(CrossEntropyForward{.logits = on_cuda(logits),
                                 .targets = on_cuda(targets),
                                 .ignore_index = kIgnore,
                                 .label_smoothing = 0,
                                 .reduction = Reduction::sum,
                                 .scale = 1,
                                 .out = loss,
                                 .statistics = saved,
                                 .row_losses = rows});
    };
    forward(without_bytes({}, DType::f32, cuda), statistics);
    CHECK(num_different(on_cpu(statistics), got.statistics) == 0);
    forward(out, {});
    CHECK(std::isnan(out.item()));
    forward(without_bytes({}, DType::f32, cuda), {});
  }
}

TEST_CASE("cuda count_correct: the first of the largest logits decides, NaN as on the CPU; targets are counted") {
  const Device cuda = cuda_device();
  for (DType dtype : kFloating) {
    for (const Shape& shape : kShapes) {
      for (std::int64_t margin : {kAligned, kMisaligned}) {
        INFO(dtype << " " << concat(shape) << " margin " << margin);
        DeviceTensors on(margin);
        const Tensor logits = small_integers(shape, dtype, 1, 3);  // many ties
        std::vector<double> values = logits.to_vector<double>();
        std::vector<std::int64_t> targets;
        for (std::int64_t r = 0; r < shape[0]; ++r) {
          const auto row = values.begin() + r * shape[1];
          targets.push_back(r == 1 ? kIgnore : std::max_element(row, row + shape[1]) - row);
          if (r == 2) targets.back() = std::min(targets.back() + 1, shape[1] - 1);
          if (r == 3) *row = NAN, targets.back() = 0;
          if (r == 4) *(row + shape[1] - 1) = NAN;
        }
        const Tensor x = tensor_of(values, shape, dtype), t = from_values(targets, {shape[0]});
        const Tensor expected = empty({}, DType::i64), got = poisoned({}, DType::i64, cuda),
                     counted = poisoned({}, DType::i64, cuda);
        launch(CountCorrect{.logits = x, .targets = t, .ignore_index = kIgnore, .out = expected});
        launch(CountCorrect{.logits = on.put(x), .targets = on.put(t), .ignore_index = kIgnore, .out = got});
        launch(CountTargets{.targets = on.put(t), .ignore_index = kIgnore, .out = counted});
        CHECK(got.item() == expected.item());
        CHECK(counted.item() == double(shape[0] - (shape[0] > 1)));
      }
    }
  }
  const Tensor many = targets_for(1000, 4), counted = poisoned({}, DType::i64, cuda);
  launch(CountTargets{.targets = on_cuda(many), .ignore_index = kIgnore, .out = counted});
  CHECK(counted.item() == 667);
}

TEST_CASE("cuda mse_loss: squares and gradients with the CPU's bits, sums within their roundings, for every pair of dtypes") {
  const std::pair<DType, DType> pairs[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32}, {DType::f16, DType::f16},
                                           {DType::bf16, DType::bf16}, {DType::f16, DType::f32}, {DType::bf16, DType::f32},
                                           {DType::f32, DType::f16},   {DType::f32, DType::bf16}};
  for (const auto& [x_dtype, target_dtype] : pairs) {
    for (std::int64_t n : {0, 1, 31, 33, 1000, 16384, 33001}) {
      for (Reduction reduction : kReductions) {
        if (n > 1000 && reduction != Reduction::mean) continue;
        INFO(x_dtype << " " << target_dtype << " " << n << " " << name_of(reduction));
        const DType accumulator = accumulator_dtype(x_dtype);
        const Shape shape = reduction == Reduction::none ? Shape{n} : Shape{};
        const Tensor x = random_tensor({n}, x_dtype, 1, -3, 3), target = random_tensor({n}, target_dtype, 2),
                     grad_out = random_tensor(shape, accumulator, 3);
        const Tensor expected = empty(shape, accumulator), expected_grad = empty({n}, x_dtype);
        launch(MseForward{.x = x,
                          .target = target,
                          .reduction = reduction,
                          .out = expected,
                          .partials = empty({MseForward::num_partials(n)}, DType::f64)});
        launch(MseBackward{.grad_out = grad_out, .x = x, .target = target, .reduction = reduction, .out = expected_grad});
        Tensor first;
        for (std::int64_t margin : {kAligned, kMisaligned}) {
          DeviceTensors on(margin);
          const Tensor out = on.output(shape, accumulator), grad = on.output({n}, x_dtype),
                       partials = on.output({MseForward::num_partials(n)}, DType::f64);
          launch(MseForward{.x = on.put(x), .target = on.put(target), .reduction = reduction, .out = out, .partials = partials});
          launch(MseBackward{
              .grad_out = on.put(grad_out), .x = on.put(x), .target = on.put(target), .reduction = reduction, .out = grad});
          CHECK(on.are_intact());
          CHECK(num_different(on_cpu(grad), expected_grad) == 0);
          if (reduction == Reduction::none) {
            CHECK(num_different(on_cpu(out), expected) == 0);
          } else {  // two sums of one piece's squares, each within so many roundings of the exact one
            const double most = std::min<double>(double(n), 16384) + 4;
            CHECK(num_outside(on_cpu(out), expected.to_vector<double>(),
                              [&](std::size_t, double e) { return 2 * roundings_of(accumulator, most) * e; }) == 0);
          }
          if (!first.defined()) first = on_cpu(out);
          else CHECK(num_different(on_cpu(out), first) == 0);
        }
      }
    }
    const Tensor x = small_integers({33001}, x_dtype, 1, 3), target = small_integers({33001}, target_dtype, 2, 3);
    const DType accumulator = accumulator_dtype(x_dtype);
    const Tensor expected = empty({}, accumulator), out = poisoned({}, accumulator, cuda_device());
    const Tensor partials = empty({3}, DType::f64), on_device = empty({3}, DType::f64, cuda_device());
    launch(MseForward{.x = x, .target = target, .reduction = Reduction::mean, .out = expected, .partials = partials});
    launch(
        MseForward{.x = on_cuda(x), .target = on_cuda(target), .reduction = Reduction::mean, .out = out, .partials = on_device});
    CHECK(num_different(on_cpu(out), expected) == 0);
  }
}

TEST_CASE("cuda losses: a target outside the classes is told when the device is next waited for, and its row skipped") {
  const Device cuda = cuda_device();
  for (std::int64_t classes : {7, 1100}) {
    for (std::int64_t bad : {std::int64_t{-1}, classes, std::int64_t{1} << 40}) {
      INFO(classes << " classes, target " << bad);
      const Tensor logits = on_cuda(random_tensor({3, classes}, DType::f32, 1)), statistics = zeros({3, 2}, DType::f32, cuda);
      const Tensor targets = on_cuda(from_values(std::vector<std::int64_t>{1, bad, 2}, {3})), out = zeros({3}, DType::f32, cuda);
      launch(CrossEntropyForward{.logits = logits,
                                 .targets = targets,
                                 .ignore_index = kIgnore,
                                 .label_smoothing = 0,
                                 .reduction = Reduction::none,
                                 .scale = 1,
                                 .first_row = 40,
                                 .out = out,
                                 .statistics = statistics,
                                 .row_losses = {}});
      const auto check_message = [&](const Tensor& read, int row) {
        const std::string message = message_of([&] { (void)on_cpu(read); });
        CHECK_THAT(message, Catch::Contains(concat("target ", bad)) && Catch::Contains(concat("position ", row)) &&
                                Catch::Contains(concat("below ", classes)));
      };
      check_message(out, 41);
      CHECK(out.to_vector<double>()[1] == 0);
      CHECK(out.to_vector<double>()[2] > 0);
      const Tensor grad = poisoned({3, classes}, DType::f32, cuda), correct = poisoned({}, DType::i64, cuda);
      launch(CrossEntropyBackward{.grad_out = out,
                                  .logits = logits,
                                  .targets = targets,
                                  .statistics = statistics,
                                  .ignore_index = kIgnore,
                                  .label_smoothing = 0,
                                  .reduction = Reduction::none,
                                  .scale = 1,
                                  .out = grad});
      check_message(grad, 1);
      CHECK(grad.to_vector<double>()[std::size_t(classes)] == 0);
      launch(CountCorrect{.logits = logits, .targets = targets, .ignore_index = kIgnore, .out = correct});
      check_message(correct, 1);
      CHECK(correct.item() >= 0);
    }
  }
}
