// Heads in two halves, and models run up to their features.
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/models/gpt2.h>
#include <refrain/models/head.h>
#include <refrain/models/vit.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

std::shared_ptr<ChainModel> vit() {
  return std::make_shared<Vit>(VitConfig{.image_height = 8,
                                         .image_width = 8,
                                         .channels = 1,
                                         .patch = 4,
                                         .width = 16,
                                         .depth = 3,
                                         .num_heads = 2,
                                         .num_classes = 5,
                                         .dropout = 0.1});
}

std::shared_ptr<ChainModel> gpt2() {
  return std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 11, .context = 7, .width = 16, .depth = 3, .num_heads = 2});
}

class NoHead : public ChainModel {
 public:
  NoHead() { add_stage<Block>("block", BlockOptions{.width = 4, .hidden = 8, .num_heads = 1}); }
};

class NoStages : public ChainModel {};

}  // namespace

TEST_CASE("head: features and projection make the model's logits, under every policy") {
  for (const bool is_vit : {true, false}) {
    const std::shared_ptr<ChainModel> model = is_vit ? vit() : gpt2();
    const Tensor input =
        is_vit ? random_tensor({2, 1, 8, 8}, DType::f32, 1) : from_values(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {2, 3});
    const HeadStage::Projection p = head_of(*model)->projection();
    CHECK(p.weight.shape() == Shape{is_vit ? 5 : 11, 16});
    CHECK(p.bias.defined() == is_vit);
    for (const CheckpointKind kind : {CheckpointKind::none, CheckpointKind::block, CheckpointKind::nested}) {
      const CheckpointPolicy policy{.kind = kind};
      seed_random(3);
      const Tensor logits = (*model)(input, policy);
      seed_random(3);
      const Tensor features = run_chain(stages_to_features(*model), input, {}, policy);
      CHECK(features.shape() == (is_vit ? Shape{2, 16} : Shape{2, 3, 16}));
      CHECK(same_bits(linear(features, p.weight, p.bias), logits));
      CHECK(partition(policy, stages_to_features(*model)) == partition(policy, model->stages()));
    }
  }
}

TEST_CASE("head: a model without one is refused") {
  CHECK(message_of([] { head_of(NoHead()); }) == "head: the last stage, 'block', has no projection");
  CHECK(message_of([] { stages_to_features(NoStages()); }) == "head: the model has no stages");
}
