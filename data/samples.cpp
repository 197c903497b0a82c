#include <refrain/data/samples.h>

#include <refrain/core/io/file.h>
#include <refrain/core/random.h>

#include <cmath>
#include <cstring>

namespace refrain {

namespace {

double value_at(const std::vector<double>& values, std::size_t channel, double otherwise) {
  return values.empty() ? otherwise : values.size() == 1 ? values[0] : values[channel];
}

// Uniform in 0 … count - 1; the bias of 2^-32 * count is far below what a crop can show.
std::int64_t pick(std::uint32_t word, std::int64_t count) { return std::int64_t(std::uint64_t(word) * std::uint64_t(count) >> 32); }

}  // namespace

std::int64_t Samples::num_targets(std::int64_t) const { return numel_of(target_shape()); }

ImageSamples::ImageSamples(std::shared_ptr<const Dataset> dataset, const ImageTransform& transform)
    : dataset_(std::move(dataset)), transform_(transform) {
  const std::size_t channels = std::size_t(dataset_->image_shape()[0]);
  for (const auto& [name, values] : {std::pair("mean", &transform_.mean), std::pair("std", &transform_.std)})
    check(values->empty() || values->size() == 1 || values->size() == channels, "normalisation: expected one ", name, " or one for each of ",
          channels, " channels, got ", values->size());
  check(transform_.crop_padding >= 0, "random crop: expected padding of at least 0, got ", transform_.crop_padding);
  value_of_pixel_.resize(channels);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const double mean = value_at(transform_.mean, channel, 0), std = value_at(transform_.std, channel, 1);
    check(std > 0 && std::isfinite(std) && std::isfinite(mean), "normalisation: expected a finite mean and a positive std, got ", mean, " and ", std);
    for (int pixel = 0; pixel < 256; ++pixel) value_of_pixel_[channel][std::size_t(pixel)] = float((pixel / 255.0 - mean) / std);
  }
}

void ImageSamples::write(std::int64_t index, std::uint32_t epoch, std::byte* input, std::int64_t* target) const {
  *target = dataset_->label(index);
  const Shape shape = dataset_->image_shape();
  const std::int64_t channels = shape[0], height = shape[1], width = shape[2];
  thread_local std::vector<std::uint8_t> pixels;
  pixels.resize(std::size_t(numel_of(shape)));
  dataset_->read(index, pixels.data());

  std::int64_t dy = 0, dx = 0;
  bool is_flipped = false;
  if (transform_.crop_padding > 0 || transform_.flip) {
    const RandomKey key{.seed = transform_.seed, .step = epoch, .purpose = RandomPurpose::data};
    const std::array<std::uint32_t, 4> words = key.block(std::uint64_t(index));
    dy = pick(words[0], 2 * transform_.crop_padding + 1) - transform_.crop_padding;
    dx = pick(words[1], 2 * transform_.crop_padding + 1) - transform_.crop_padding;
    is_flipped = transform_.flip && (words[2] & 1);
  }
  float* out = reinterpret_cast<float*>(input);
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const std::array<float, 256>& values = value_of_pixel_[std::size_t(channel)];
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t from_y = y + dy;
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t from_x = (is_flipped ? width - 1 - x : x) + dx;
        const bool is_inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        *out++ = values[is_inside ? pixels[std::size_t((channel * height + from_y) * width + from_x)] : 0];
      }
    }
  }
}

std::int64_t num_text_windows(std::int64_t num_bytes, std::int64_t window, double test_share, Split split) {
  const std::int64_t boundary = std::int64_t(double(num_bytes) * (1 - test_share));
  return ((split == Split::train ? boundary : num_bytes - boundary) - 1) / window;
}

TextSamples::TextSamples(const std::filesystem::path& path, std::int64_t window, double test_share, Split split) : window_(window) {
  check(window >= 1, "text: expected a window of at least 1 byte, got ", window);
  check(test_share > 0 && test_share < 1, "text: expected a share for testing between 0 and 1, got ", test_share);
  bytes_ = read_text_file(path);
  size_ = num_text_windows(std::int64_t(bytes_.size()), window, test_share, split);
  const std::size_t boundary = std::size_t(double(bytes_.size()) * (1 - test_share));
  bytes_ = split == Split::train ? bytes_.substr(0, boundary) : bytes_.substr(boundary);
  check<DataError>(size_ >= 1, path.string(), ": expected at least ", window + 1, " bytes for ", split == Split::train ? "training" : "testing",
                   ", found ", bytes_.size());
}

void TextSamples::write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const {
  std::int64_t* tokens = reinterpret_cast<std::int64_t*>(input);
  const char* window = bytes_.data() + index * window_;
  for (std::int64_t t = 0; t < window_; ++t) {
    tokens[t] = std::uint8_t(window[t]);
    target[t] = std::uint8_t(window[t + 1]);
  }
}

}  // namespace refrain
