// Labelled images as bytes, whatever file they came from. Formats are converted here and never shape the compute.
#pragma once

#include <refrain/core/shape.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace refrain {

enum class Split { train, test };

// What files say about their images without the pixels being read.
struct DatasetSizes {
  std::int64_t size = 0;
  Shape image_shape = {};  // [C, H, W]
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Shape image_shape() const = 0;          // [C, H, W]
  virtual std::int64_t num_classes() const = 0;   // labels are below it
  virtual std::int64_t label(std::int64_t index) const = 0;
  // Writes the C*H*W bytes of an image. Called by several threads at once.
  virtual void read(std::int64_t index, std::uint8_t* pixels) const = 0;
};

// A data set held in memory. Throws DataError when pixels, labels and shape do not belong together.
class MemoryDataset : public Dataset {
 public:
  MemoryDataset(std::string name, std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels, const Shape& image_shape,
                std::int64_t num_classes);
  std::int64_t size() const override { return std::int64_t(labels_.size()); }
  Shape image_shape() const override { return shape_; }
  std::int64_t num_classes() const override { return num_classes_; }
  std::int64_t label(std::int64_t index) const override { return labels_[std::size_t(index)]; }
  void read(std::int64_t index, std::uint8_t* pixels) const override;

 private:
  std::vector<std::uint8_t> pixels_, labels_;
  Shape shape_;
  std::int64_t num_classes_, image_bytes_;
};

}  // namespace refrain
