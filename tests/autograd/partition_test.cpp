// Random programs under random partitions into nested regions, with captures, keep-lists, frozen weights and dropout:
// the gradients have the bits they have without regions, and each leaf's gradient becomes final exactly once.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <map>

using namespace refrain;
using refrain::testing::check_same_bits;
using refrain::testing::test_values;

namespace {

constexpr std::int64_t kRows = 4, kCols = 6;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : key_{.seed = seed} {}
  int below(int bound) { return int(key_.word(next_++) % std::uint32_t(bound)); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  RandomKey key_;
  std::uint64_t next_ = 0;
};

struct Step {
  int op, a, b, weight;
};

struct Program {
  std::vector<Step> steps;
  std::vector<int> loss_values;  // indices of values; value 0 and 1 are the inputs
};

struct Leaves {
  std::vector<Tensor> inputs, weights;
  Tensor gain, shift;
  std::vector<Tensor> all() const {
    std::vector<Tensor> list = inputs;
    list.insert(list.end(), weights.begin(), weights.end());
    list.push_back(gain);
    list.push_back(shift);
    return list;
  }
};

Leaves make_leaves(Dice& dice) {
  Leaves leaves;
  const auto add = [&](const Shape& shape, int salt, int frozen_percent) {
    Tensor t = test_values(shape, DType::f64, salt);
    if (!dice.chance(frozen_percent)) set_requires_grad(t);
    return t;
  };
  for (int i = 0; i < 2; ++i) leaves.inputs.push_back(add({kRows, kCols}, i, 50));
  for (int i = 0; i < 3; ++i) leaves.weights.push_back(add({kCols, kCols}, 10 + i, 25));
  leaves.gain = add({kCols}, 20, 25);
  leaves.shift = add({kCols}, 21, 0);
  return leaves;
}

Program make_program(Dice& dice) {
  Program program;
  const int count = 4 + dice.below(14);
  for (int i = 0; i < count; ++i) {
    const int values = 2 + i;
    // Mostly the latest value, so that chains are long.
    const auto pick = [&] { return dice.chance(60) ? values - 1 : dice.below(values); };
    program.steps.push_back({dice.below(11), pick(), pick(), dice.below(3)});
  }
  program.loss_values.push_back(count + 1);
  for (int i = dice.below(3); i > 0; --i) program.loss_values.push_back(dice.below(count + 2));
  return program;
}

Tensor run_step(const Step& step, const std::vector<Tensor>& values, const Leaves& leaves) {
  const Tensor& a = values[std::size_t(step.a)];
  const Tensor& b = values[std::size_t(step.b)];
  const Tensor& w = leaves.weights[std::size_t(step.weight)];
  switch (step.op) {
    case 0: return a + b;
    case 1: return a * b;
    case 2: return sin(a);
    case 3: return gelu(a, GeluForm::erf);
    case 4: return layer_norm(a, leaves.gain, leaves.shift, 1e-5);
    case 5: return linear(a, w, Tensor());
    case 6: return linear(a, w, leaves.shift);
    case 7: return dropout(a, 0.25);
    case 8: return reshape(reshape(layer_norm(a, leaves.gain, leaves.shift, 1e-5), {kRows * kCols}), {kRows, kCols});
    case 9: return softmax(a, -1);
    default: return linear(dropout(gelu(layer_norm(a, leaves.gain, leaves.shift, 1e-5), GeluForm::tanh), 0.25), w, Tensor());
  }
}

// Appends the values of steps [begin, end), cut at random into plain steps and regions. The cuts come from dice rolled
// ahead of time, so that a replay cuts alike.
void run_steps(const Program& program, const Leaves& leaves, std::vector<Tensor>& values, int begin, int end, std::uint64_t cut_seed,
               int depth) {
  Dice dice(cut_seed);
  for (int at = begin; at < end;) {
    const int length = 1 + dice.below(end - at);
    const std::uint64_t inner_seed = cut_seed * 31 + std::uint64_t(at) * 7 + std::uint64_t(depth);
    if (depth == 0 || dice.chance(30)) {
      for (int i = 0; i < length; ++i, ++at) values.push_back(run_step(program.steps[std::size_t(at)], values, leaves));
      continue;
    }
    CheckpointOptions options;
    if (dice.chance(30)) options.keep.push_back("matmul");
    if (dice.chance(30)) options.keep.push_back(dice.chance(50) ? "layer_norm" : "mul");
    options.certify = dice.chance(20);
    const int to = at + length;
    const auto body = [&program, &leaves, at, to, inner_seed, depth](std::vector<Tensor> given) {
      const std::size_t old = given.size();
      run_steps(program, leaves, given, at, to, inner_seed, depth - 1);
      return std::vector<Tensor>(given.begin() + std::ptrdiff_t(old), given.end());
    };
    std::vector<Tensor> made;
    if (dice.chance(50)) made = checkpoint(options, body, values);                                    // as arguments
    else made = checkpoint(options, [body, captured = values] { return body(captured); });            // as captures
    values.insert(values.end(), made.begin(), made.end());
    at = to;
  }
}

using Grads = std::vector<Tensor>;

Grads run(const Program& program, const Leaves& leaves, std::uint64_t cut_seed, int depth) {
  for (const Tensor& leaf : leaves.all()) clear_grad(leaf);
  seed_random(17);
  StageScope stage(3);
  std::vector<Tensor> values = leaves.inputs;
  run_steps(program, leaves, values, 0, int(program.steps.size()), cut_seed, depth);
  Tensor loss = full({}, 0, DType::f64);
  for (int index : program.loss_values) loss = loss + sum(values[std::size_t(index)]);
  values.clear();
  std::map<const void*, int> announced;
  if (loss.requires_grad()) {
    backward(loss, {.leaves = leaves.all(), .on_final = [&](const Tensor& leaf, bool has_grad) {
                      ++announced[leaf.autograd_slot().get()];
                      CHECK(has_grad == grad_of(leaf).defined());
                    }});
  }
  Grads grads;
  for (const Tensor& leaf : leaves.all()) {
    grads.push_back(grad_of(leaf).defined() ? clone(grad_of(leaf)) : Tensor());
    if (loss.requires_grad() && leaf.requires_grad()) CHECK(announced[leaf.autograd_slot().get()] == 1);
  }
  return grads;
}

}  // namespace

TEST_CASE("checkpoint: 400 random programs and partitions give the plain run's bits") {
  const std::int64_t records_before = tape_size();
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Dice dice(seed);
    const Leaves leaves = make_leaves(dice);
    const Program program = make_program(dice);
    const Grads plain = run(program, leaves, 0, 0);
    for (int depth : {1 + dice.below(2), 3}) {
      INFO("program " << seed << ", depth " << depth);
      const Grads cut = run(program, leaves, seed * 1000 + std::uint64_t(depth), depth);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        REQUIRE(plain[i].defined() == cut[i].defined());
        if (plain[i].defined()) check_same_bits(plain[i], cut[i]);
      }
    }
  }
  CHECK(tape_size() == records_before);
}
