// Samples that have sizes and no values, for a program that is planned: nothing is read, nothing can be written.
#pragma once

#include <refrain/data/samples.h>

namespace refrain {

class PlannedSamples : public Samples {
 public:
  struct Sizes {
    std::int64_t size = 0;        // number of samples
    Shape input_shape = {};       // of one sample
    DType input_dtype = DType::f32;
    Shape target_shape = {};
    std::int64_t num_classes = 0;
  };
  explicit PlannedSamples(const Sizes& sizes) : sizes_(sizes) {}
  std::int64_t size() const override { return sizes_.size; }
  Shape input_shape() const override { return sizes_.input_shape; }
  DType input_dtype() const override { return sizes_.input_dtype; }
  Shape target_shape() const override { return sizes_.target_shape; }
  std::int64_t num_classes() const override { return sizes_.num_classes; }
  // Throws InvalidArgument: a loader on a plan device never asks for it.
  void write(std::int64_t, std::uint32_t, std::byte*, std::int64_t*) const override { fail("planned samples have no values"); }

 private:
  Sizes sizes_;
};

}  // namespace refrain
