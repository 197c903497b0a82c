// A model of one weight whose gradient is known: each sample is a number g and its loss is w·g.
#pragma once

#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/tape.h>
#include <refrain/optim/all.h>
#include <refrain/train/trainer.h>

#include <vector>

namespace refrain::testing {

// Sample i is the number values[i]; it counts as counts[i] targets.
class ListSamples : public Samples {
 public:
  explicit ListSamples(std::vector<float> values, std::vector<std::int64_t> counts = {})
      : values_(std::move(values)), counts_(std::move(counts)) {}
  std::int64_t size() const override { return std::int64_t(values_.size()); }
  Shape input_shape() const override { return {}; }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return 1; }
  std::int64_t num_targets(std::int64_t index) const override { return counts_.empty() ? 1 : counts_[std::size_t(index)]; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    *reinterpret_cast<float*>(input) = values_[std::size_t(index)];
    *target = index;
  }

 private:
  std::vector<float> values_;
  std::vector<std::int64_t> counts_;
};

struct Toy {
  Tensor w;
  Loader loader;
  Sgd optimizer;
  Trainer trainer;

  Toy(std::shared_ptr<const Samples> samples, const LoaderOptions& loader_options, const Schedule& schedule, const TrainerOptions& options)
      : w(leaf()), loader(std::move(samples), loader_options), optimizer({ParameterGroup{.parameters = {w}, .names = {"w"}}}),
        trainer(loader, optimizer, schedule,
                [this](const Batch& batch, double scale) { return BatchLoss{mul(sum(mul(batch.input, w)), scale)}; }, options) {}

  static Tensor leaf() {
    Tensor t = zeros({}, DType::f32);
    set_requires_grad(t);
    return t;
  }
};

}  // namespace refrain::testing
