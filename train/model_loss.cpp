#include <refrain/train/model_loss.h>

#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/autograd/tape.h>

#include <utility>

namespace refrain {

ModelLoss::ModelLoss(std::shared_ptr<ChainModel> model, const ModelLossOptions& options)
    : model_(std::move(model)), options_(options), stages_(stages_to_features(*model_)), head_(head_of(*model_)) {}

BatchLoss ModelLoss::operator()(const Batch& batch, double scale) const {
  const PrecisionScope precision(options_.precision);
  Tensor features;
  {
    const ModuleScope scope = model_->enter();
    features = run_chain(stages_, batch.input, {}, is_grad_enabled() ? options_.policy : CheckpointPolicy{});
  }
  return from_features(features, batch, scale);
}

BatchLoss ModelLoss::from_features(const Tensor& features, const Batch& batch, double scale) const {
  const PrecisionScope precision(options_.precision);
  const CrossEntropyOptions options{
      .label_smoothing = is_grad_enabled() ? options_.label_smoothing : 0, .reduction = Reduction::sum, .scale = scale};
  Tensor logits;
  {
    const ModuleScope model_scope = model_->enter(), head_scope = head_->enter();
    if (options_.chunk_rows > 0) {
      const HeadStage::Projection p = head_->projection();
      const LinearCrossEntropy result = linear_cross_entropy(features, p.weight, p.bias, batch.target, options, options_.chunk_rows);
      return {result.loss, result.correct};
    }
    logits = head_->logits(features);
  }
  return {cross_entropy(logits, batch.target, options), count_correct(detach(logits), batch.target)};
}

LossFunction loss_function(std::shared_ptr<const ModelLoss> loss) {
  return [loss = std::move(loss)](const Batch& batch, double scale) { return (*loss)(batch, scale); };
}

}  // namespace refrain
