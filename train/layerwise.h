// Layer-by-layer accumulation: all micro-batches of a window pass one stage of the model before the next, forward and
// backward. Each stage's gradients are then final one after the other, so that fused updates work together with
// accumulation, and at most one stage's gradients are alive. Every gradient has the bits of the ordinary order: a
// parameter's contributions come in the order of the micro-batches either way (those of a weight that several stages read
// are summed a stage at a time in both, autograd/value.h).
//
// Between stages there are only boundaries, the hidden states of all micro-batches. What is kept inside a stage is the
// checkpoint policy's affair, as ever: a part of the chain that is no region keeps what backward reads, for all
// micro-batches; a region keeps its boundaries; a region with inner parts keeps its first boundaries only, and all
// micro-batches pass it once more when backward comes to it.
#pragma once

#include <refrain/data/loader.h>
#include <refrain/train/model_loss.h>

#include <functional>
#include <memory>
#include <vector>

namespace refrain {

// What keys a window's random numbers beside the seed: the optimizer step, and its first sample's place in the global batch.
struct WindowPosition {
  std::uint32_t step = 0;
  std::int64_t first_sample = 0;
};

class LayerwiseWindow {
 public:
  // Runs the batches, which the loader must hold, through every stage up to the head. The loss is multiplied by `scale`
  // (model_loss.h) and backward starts with `loss_scale`.
  LayerwiseWindow(const ModelLoss& loss, std::vector<Batch> batches, const WindowPosition& position, double scale, double loss_scale);
  ~LayerwiseWindow();
  LayerwiseWindow(LayerwiseWindow&&) noexcept;
  LayerwiseWindow& operator=(LayerwiseWindow&&) = delete;

  struct BackwardHooks {
    // Keeps what another backward needs.
    bool is_repeated = false;
    std::function<void(const BatchLoss&)> on_loss = {};
    // Called once, when all losses are known and before the first gradient is final: the leaves to announce, and to whom
    // (leaves and on_final of BackwardOptions).
    std::function<BackwardOptions()> announcements = {};
  };
  // Losses, and all gradients of the window.
  void backward(const BackwardHooks& hooks);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refrain
