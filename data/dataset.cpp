#include <refrain/data/dataset.h>

#include <cstring>

namespace refrain {

MemoryDataset::MemoryDataset(std::string name, std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels, const Shape& image_shape,
                             std::int64_t num_classes)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), shape_(image_shape), num_classes_(num_classes), image_bytes_(numel_of(image_shape)) {
  check<DataError>(shape_.size() == 3 && image_bytes_ > 0, name, ": expected images of shape [C, H, W], found ", shape_);
  check<DataError>(std::int64_t(pixels_.size()) == size() * image_bytes_, name, ": expected ", size(), " images of ", image_bytes_,
                   " bytes for as many labels, found ", pixels_.size(), " bytes");
  for (std::size_t i = 0; i < labels_.size(); ++i)
    check<DataError>(labels_[i] < num_classes_, name, ": label ", int(labels_[i]), " of sample ", i, " is not below ", num_classes_);
}

void MemoryDataset::read(std::int64_t index, std::uint8_t* pixels) const {
  std::memcpy(pixels, pixels_.data() + index * image_bytes_, std::size_t(image_bytes_));
}

}  // namespace refrain
