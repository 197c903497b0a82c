// Samples: the numbers a model reads, one sample at a time. Image samples normalise and augment; text samples are windows
// of bytes. Whatever is random in a sample depends on seed, epoch and sample index alone: not on batch, thread or position.
#pragma once

#include <refrain/core/dtype.h>
#include <refrain/data/dataset.h>

#include <array>
#include <filesystem>

namespace refrain {

class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t size() const = 0;
  virtual Shape input_shape() const = 0;    // of one sample
  virtual DType input_dtype() const = 0;
  virtual Shape target_shape() const = 0;   // of one sample; targets are i64
  virtual std::int64_t num_classes() const = 0;
  // Targets of a sample that the loss counts: all of them unless some carry an ignored index.
  virtual std::int64_t num_targets(std::int64_t index) const;
  // Writes one sample into place. Called from the loader's thread.
  virtual void write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const = 0;
};

struct ImageTransform {
  // Per channel, of pixels scaled to 0 … 1; one value serves all channels, none means 0 and 1.
  std::vector<double> mean = {}, std = {};
  std::int64_t crop_padding = 0;   // random crop of the image padded with black by this many pixels on each side
  bool flip = false;               // mirror every other sample left to right, by chance
  std::uint64_t seed = 0;          // of crop and flip
};

// f32 [C, H, W] = (pixel / 255 - mean) / std with the label as a scalar target.
class ImageSamples : public Samples {
 public:
  // Throws InvalidArgument for a mean or std of the wrong length, a std of 0, or negative padding.
  ImageSamples(std::shared_ptr<const Dataset> dataset, const ImageTransform& transform);
  std::int64_t size() const override { return dataset_->size(); }
  Shape input_shape() const override { return dataset_->image_shape(); }
  DType input_dtype() const override { return DType::f32; }
  Shape target_shape() const override { return {}; }
  std::int64_t num_classes() const override { return dataset_->num_classes(); }
  void write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const override;

 private:
  std::shared_ptr<const Dataset> dataset_;
  ImageTransform transform_;
  std::vector<std::array<float, 256>> value_of_pixel_;  // per channel
};

// Windows of a file's bytes for next-byte prediction: window i holds bytes i*T … i*T + T; input its first T, target its
// last T, both i64 [T]. The first windows are for training, the last `test_share` of the bytes for testing.
class TextSamples : public Samples {
 public:
  // Throws DataError when the split holds no whole window.
  TextSamples(const std::filesystem::path& path, std::int64_t window, double test_share, Split split);
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return {window_}; }
  DType input_dtype() const override { return DType::i64; }
  Shape target_shape() const override { return {window_}; }
  std::int64_t num_classes() const override { return 256; }
  void write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const override;

 private:
  std::string bytes_;  // of this split
  std::int64_t window_, size_;
};

// Windows that a text of `num_bytes` has in a split; below 1 when it holds no whole one.
std::int64_t num_text_windows(std::int64_t num_bytes, std::int64_t window, double test_share, Split split);

}  // namespace refrain
