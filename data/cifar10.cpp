#include <refrain/data/cifar10.h>

#include <refrain/data/byte_stream.h>

#include <algorithm>
#include <limits>

namespace refrain {

namespace {

constexpr std::int64_t kPixels = 3 * 32 * 32;
constexpr std::int64_t kRecord = 1 + kPixels;

std::filesystem::path folder_of(const std::filesystem::path& directory) {
  const std::filesystem::path nested = directory / "cifar-10-batches-bin";
  std::error_code error;
  return std::filesystem::is_directory(nested, error) ? nested : directory;
}

std::vector<std::string> file_names(Split split) {
  if (split == Split::test) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

}  // namespace

std::shared_ptr<const Dataset> load_cifar10(const std::filesystem::path& directory, Split split) {
  const std::filesystem::path folder = folder_of(directory);
  std::vector<std::uint8_t> pixels, labels;
  for (const std::string& name : file_names(split)) {
    const std::filesystem::path path = folder / name;
    const std::unique_ptr<ByteStream> stream = ByteStream::open(path);
    const std::vector<std::uint8_t> bytes = read_growing(*stream, std::numeric_limits<std::int64_t>::max());
    check<DataError>(std::int64_t(bytes.size()) % kRecord == 0, path.string(), ": expected whole records of ", kRecord, " bytes, found ", bytes.size(),
                     " bytes, ", std::int64_t(bytes.size()) % kRecord, " more than ", std::int64_t(bytes.size()) / kRecord, " records");
    for (auto record = bytes.begin(); record != bytes.end(); record += kRecord) {
      check<DataError>(*record <= 9, path.string(), ": expected labels 0 to 9, found ", int(*record), " in record ", (record - bytes.begin()) / kRecord);
      labels.push_back(*record);
      pixels.insert(pixels.end(), record + 1, record + kRecord);
    }
  }
  return std::make_shared<MemoryDataset>(folder.string(), std::move(pixels), std::move(labels), Shape{3, 32, 32}, 10);
}

DatasetSizes cifar10_sizes(const std::filesystem::path& directory, Split split) {
  std::int64_t records = 0;
  for (const std::string& name : file_names(split)) {
    const std::filesystem::path path = folder_of(directory) / name;
    const std::int64_t bytes = unpacked_size(path);
    check<DataError>(bytes % kRecord == 0, path.string(), ": expected whole records of ", kRecord, " bytes, found ", bytes, " bytes");
    records += bytes / kRecord;
  }
  return {records, {3, 32, 32}};
}

}  // namespace refrain
