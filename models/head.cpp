#include <refrain/models/head.h>

#include <refrain/autograd/ops/linear.h>

#include <utility>

namespace refrain {

namespace {

class FeatureStage : public Stage {
 public:
  explicit FeatureStage(std::shared_ptr<HeadStage> head) : head_(std::move(head)) {}
  Tensor forward(const Tensor& hidden, const SideInputs& side) override { return head_->features(hidden, side); }
  std::string_view name() const override { return head_->name(); }
  bool is_block() const override { return false; }

 private:
  std::shared_ptr<HeadStage> head_;
};

}  // namespace

Tensor HeadStage::logits(const Tensor& features) const {
  const Projection p = projection();
  return linear(features, p.weight, p.bias);
}

std::shared_ptr<HeadStage> head_of(const ChainModel& model) {
  check(!model.stages().empty(), "head: the model has no stages");
  auto head = std::dynamic_pointer_cast<HeadStage>(model.stages().back());
  check(head != nullptr, "head: the last stage, '", model.stages().back()->name(), "', has no projection");
  return head;
}

std::vector<std::shared_ptr<Stage>> stages_to_features(const ChainModel& model) {
  std::vector<std::shared_ptr<Stage>> stages = model.stages();
  stages.back() = std::make_shared<FeatureStage>(head_of(model));
  return stages;
}

}  // namespace refrain
