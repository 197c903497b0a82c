// CIFAR-10 in its binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of a label byte and 3 x 1024
// pixels, red then green then blue, each plane row by row.
#pragma once

#include <refrain/data/dataset.h>

#include <filesystem>

namespace refrain {

// The five data_batch_N.bin, or test_batch.bin, of `directory` or of cifar-10-batches-bin inside it; each may be gzipped.
// Files hold any number of whole records. Throws DataError for absent files, a cut record and labels above 9.
std::shared_ptr<const Dataset> load_cifar10(const std::filesystem::path& directory, Split split);

// From the files' lengths alone. Throws DataError as load_cifar10 does for absent files and a cut record.
DatasetSizes cifar10_sizes(const std::filesystem::path& directory, Split split);

}  // namespace refrain
