// IDX files, the format of MNIST and Fashion-MNIST: magic 00 00 TT DD (element type, dims), DD big-endian 32-bit extents,
// then the elements. Only unsigned bytes (TT = 08) are read; files may be gzipped under any name.
#pragma once

#include <refrain/data/dataset.h>

#include <filesystem>

namespace refrain {

struct IdxData {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> bytes;
};

// Throws DataError with file, expected and found for a wrong magic, another number of dims than `num_dims` (labels have 1,
// images 3), a file that is cut, and one that goes on after its data.
IdxData read_idx(const std::filesystem::path& path, int num_dims);

// Images [1, H, W] with their labels.
std::shared_ptr<const Dataset> load_idx(const std::filesystem::path& images, const std::filesystem::path& labels, std::int64_t num_classes = 10);

// The MNIST family's file names inside `directory` (train-images-idx3-ubyte and so on), with .gz or without.
std::shared_ptr<const Dataset> load_mnist(const std::filesystem::path& directory, Split split, std::int64_t num_classes = 10);

// From the header of the images alone. Throws DataError as load_mnist does for a file that is absent or has another header.
DatasetSizes mnist_sizes(const std::filesystem::path& directory, Split split);

}  // namespace refrain
