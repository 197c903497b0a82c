// Policies as trees: what each makes of a chain, and that a tree given by hand changes no bit.
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/stage.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/check.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <random>

using namespace refrain;
using refrain::testing::test_values;
using Catch::Contains;

namespace {

class ToyStage : public Stage {
 public:
  ToyStage(std::string name, bool is_block, int salt)
      : weight(test_values({6, 6}, DType::f64, salt)), name_(std::move(name)), is_block_(is_block) {
    set_requires_grad(weight);
  }
  Tensor forward(const Tensor& hidden, const SideInputs&) override {
    return linear(dropout(gelu(linear(hidden, weight, Tensor()), GeluForm::erf), 0.25), weight, Tensor());
  }
  std::string_view name() const override { return name_; }
  bool is_block() const override { return is_block_; }

  Tensor weight;

 private:
  std::string name_;
  bool is_block_;
};

using Stages = std::vector<std::shared_ptr<Stage>>;

// embed, blocks, head.
Stages chain(std::size_t blocks) {
  Stages stages{std::make_shared<ToyStage>("embed", false, 1)};
  for (std::size_t i = 0; i < blocks; ++i) stages.push_back(std::make_shared<ToyStage>("blocks." + std::to_string(i), true, int(10 + i)));
  stages.push_back(std::make_shared<ToyStage>("head", false, 2));
  return stages;
}

ChainPart bare(std::size_t begin, std::size_t end) { return {begin, end, false, {}, {}}; }
ChainPart region(std::size_t begin, std::size_t end, std::vector<ChainPart> parts = {}) { return {begin, end, true, {}, std::move(parts)}; }

std::vector<std::vector<double>> gradients(const Stages& stages, const CheckpointPolicy& policy) {
  seed_random(5);
  set_random_position(3, 0);
  const Tensor out = sum(run_chain(stages, test_values({4, 6}, DType::f64, 3), {}, policy));
  std::vector<std::vector<double>> values{out.to_vector<double>()};
  backward(out);
  for (const auto& stage : stages) {
    const Tensor& weight = static_cast<ToyStage&>(*stage).weight;
    values.push_back(grad_of(weight).to_vector<double>());
    clear_grad(weight);
  }
  return values;
}

// A random tree over begin … end, regions only over blocks.
std::vector<ChainPart> random_parts(std::mt19937& random, std::size_t begin, std::size_t end, std::size_t num_stages, int depth) {
  const auto draw = [&](std::size_t below) { return std::size_t(random() % below); };
  std::vector<ChainPart> parts;
  while (begin < end) {
    ChainPart part = bare(begin, begin + 1 + draw(end - begin));
    part.is_region = draw(3) != 0 && begin > 0 && part.end < num_stages;
    if (depth > 0 && draw(2) == 0) part.parts = random_parts(random, part.begin, part.end, num_stages, depth - 1);
    else if (part.is_region && draw(2) == 0)
      part.keep = draw(2) == 0 ? std::vector<std::string>{"matmul"} : std::vector<std::string>{"gelu", "dropout"};
    begin = part.end;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

TEST_CASE("stage: what the policies make of a chain of embed, five blocks and head") {
  const Stages stages = chain(5);
  using Parts = std::vector<ChainPart>;
  CHECK(partition({}, stages) == Parts{bare(0, 1), bare(1, 2), bare(2, 3), bare(3, 4), bare(4, 5), bare(5, 6), bare(6, 7)});
  CHECK(partition({.kind = CheckpointKind::block}, stages) ==
        Parts{bare(0, 1), region(1, 2), region(2, 3), region(3, 4), region(4, 5), region(5, 6), bare(6, 7)});
  CHECK(partition({.kind = CheckpointKind::nested, .levels = 2}, stages) == Parts{bare(0, 1),
                                                                                  region(1, 4, {region(1, 2), region(2, 3), region(3, 4)}),
                                                                                  region(4, 6, {region(4, 5), region(5, 6)}), bare(6, 7)});
  CHECK(partition({.kind = CheckpointKind::nested, .levels = 1}, stages) == partition({.kind = CheckpointKind::block}, stages));
  const Parts selective = partition({.kind = CheckpointKind::selective, .keep = {"attention"}}, stages);
  REQUIRE(selective.size() == 7);
  CHECK(selective[1].keep == std::vector<std::string>{"attention"});
  CHECK(selective[0] == bare(0, 1));
  CHECK(partition({.kind = CheckpointKind::block}, {}).empty());
  CHECK_THROWS_WITH(partition({.kind = CheckpointKind::nested, .levels = 0}, stages), Contains("at least 1 level"));
}

TEST_CASE("stage: a custom policy is taken as given, and refused where it cannot be run") {
  const Stages stages = chain(3);
  using Parts = std::vector<ChainPart>;
  const auto made = [&](const Parts& parts) { return partition({.kind = CheckpointKind::custom, .parts = parts}, stages); };
  const Parts good{bare(0, 2), region(2, 4, {bare(2, 3), region(3, 4)}), bare(4, 5)};
  CHECK(made(good) == good);
  CHECK_THROWS_WITH(made({}), Contains("from 0 to 5 are in none"));
  CHECK_THROWS_WITH(made({bare(0, 2), bare(3, 5)}), Contains("begins at stage 2"));
  CHECK_THROWS_WITH(made({bare(0, 2), bare(1, 5)}), Contains("begins at stage 2"));
  CHECK_THROWS_WITH(made({bare(0, 6)}), Contains("ends by 5"));
  CHECK_THROWS_WITH(made({region(0, 2), bare(2, 5)}), Contains("'embed' is no block"));
  CHECK_THROWS_WITH(made({bare(0, 1), region(1, 4, {region(1, 2)}), bare(4, 5)}), Contains("from 2 to 4 are in none"));
  Parts keeping{bare(0, 1), region(1, 4, {bare(1, 4)}), bare(4, 5)};
  keeping[1].keep = {"matmul"};
  CHECK_THROWS_WITH(made(keeping), Contains("ops to keep"));
}

TEST_CASE("stage: 100 random trees change no bit") {
  const Stages stages = chain(6);
  const auto plain = gradients(stages, {});
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    INFO("tree " << seed);
    std::mt19937 random(seed);
    CheckpointPolicy policy{
        .kind = CheckpointKind::custom, .certify = seed % 4 == 0, .parts = random_parts(random, 0, stages.size(), stages.size(), 3)};
    REQUIRE(gradients(stages, policy) == plain);
  }
}
