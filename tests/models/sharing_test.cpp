// Weights and values used several times, inside and across checkpoint regions: never a bit of difference.
#include <refrain/models/chain_model.h>
#include <refrain/nn/attention.h>
#include <refrain/nn/dropout.h>

#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/fixtures/fixture.h>
#include <refrain/tests/support/catch.h>

#include <memory>

using namespace refrain;

namespace {

// Three linears read one input; `mixer` is one module of all stages, used three times in each; `gate` is a leaf nobody
// registers; one region is a temporary lambda, another one's result is thrown away.
class OddStage : public StageModule {
 public:
  OddStage(std::shared_ptr<Linear> mixer, Tensor gate) : mixer_(std::move(mixer)), gate_(std::move(gate)) {
    attention_ = add<SeparateAttention>("attention", 8, 2, MultiHeadAttentionOptions{.dropout = 0.2});
    dropout_ = add<Dropout>("dropout", 0.25);
  }
  Tensor forward(const Tensor& hidden, const SideInputs&) override {
    Tensor x = hidden + (*attention_)(hidden);
    for (int i = 0; i < 3; ++i) x = tanh((*mixer_)(x));
    x = checkpoint([gate = gate_](const Tensor& t) { return t * gate; }, (*dropout_)(x));
    checkpoint([weight = mixer_->weight](const Tensor& t) { return linear(t, weight); }, x);
    return x + hidden;
  }

 private:
  std::shared_ptr<Linear> mixer_;
  Tensor gate_;
  std::shared_ptr<SeparateAttention> attention_;
  std::shared_ptr<Dropout> dropout_;
};

class OddModel : public ChainModel {
 public:
  OddModel() : gate(fixture::values("gate", {8}, 0.5, 1)) {
    set_requires_grad(gate);
    mixer = add<Linear>("mixer", 8, 8);
    for (int i = 0; i < 5; ++i) add_stage<OddStage>(concat("blocks.", i), mixer, gate);
  }
  std::shared_ptr<Linear> mixer;
  Tensor gate;
};

using Values = std::vector<std::vector<float>>;

Values loss_and_gradients(const OddModel& model, const CheckpointPolicy& policy) {
  seed_random(5);
  const Tensor x = fixture::values("x", {2, 4, 8});
  set_requires_grad(x);
  const Tensor loss = sum(square(model(x, policy)));
  Values values{loss.to_vector<float>()};
  backward(loss);
  std::vector<Tensor> leaves = model.parameters();
  leaves.push_back(model.gate);
  leaves.push_back(x);
  for (const Tensor& t : leaves) {
    values.push_back(grad_of(t).to_vector<float>());
    clear_grad(t);
  }
  return values;
}

}  // namespace

TEST_CASE("sharing: shared modules, captured leaves, temporary lambdas and discarded regions change no bit under any policy", "[policy]") {
  const OddModel model;
  CHECK(model.named_parameters().size() == 2 + 5 * 8);
  const Values plain = loss_and_gradients(model, {});
  CHECK(loss_and_gradients(model, {.kind = CheckpointKind::block}) == plain);
  CHECK(loss_and_gradients(model, {.kind = CheckpointKind::block, .certify = true}) == plain);
  for (const int levels : {2, 3}) CHECK(loss_and_gradients(model, {.kind = CheckpointKind::nested, .levels = levels}) == plain);
  for (const std::string keep : {"matmul", "attention", "tanh", "dropout"}) {
    INFO(keep);
    CHECK(loss_and_gradients(model, {.kind = CheckpointKind::selective, .keep = {keep}}) == plain);
  }
  CHECK(tape_size() == 0);
}
