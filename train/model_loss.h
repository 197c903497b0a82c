// A chain model's loss on micro-batches, as one function or as two: up to the head's features, and from them on.
#pragma once

#include <refrain/autograd/precision.h>
#include <refrain/models/head.h>
#include <refrain/train/trainer.h>

#include <memory>
#include <vector>

namespace refrain {

struct ModelLossOptions {
  CheckpointPolicy policy = {};  // where gradients are wanted
  Precision precision = Precision::f32_true;
  double label_smoothing = 0;   // likewise: evaluations compare
  std::int64_t chunk_rows = 0;  // logits of so many rows exist at a time; 0: all, kept for backward
};

// A LossFunction: cross-entropy of the model's logits.
class ModelLoss {
 public:
  // Throws InvalidArgument for a model whose last stage is no HeadStage.
  ModelLoss(std::shared_ptr<ChainModel> model, const ModelLossOptions& options);

  BatchLoss operator()(const Batch& batch, double scale) const;

  const ChainModel& model() const { return *model_; }
  const ModelLossOptions& options() const { return options_; }
  // The model's stages, the last of which gives the head's features; for schedules that run stages themselves, inside a
  // PrecisionScope and the model's scope.
  const std::vector<std::shared_ptr<Stage>>& stages() const { return stages_; }
  // What is left of a micro-batch then.
  BatchLoss from_features(const Tensor& features, const Batch& batch, double scale) const;

 private:
  std::shared_ptr<ChainModel> model_;
  ModelLossOptions options_;
  std::vector<std::shared_ptr<Stage>> stages_;
  std::shared_ptr<HeadStage> head_;
};

// For a Trainer.
LossFunction loss_function(std::shared_ptr<const ModelLoss> loss);

}  // namespace refrain
