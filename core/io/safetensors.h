// Safetensors files (https://github.com/huggingface/safetensors, "Format"): an 8-byte little-endian header length, a JSON
// header, then the tensors' bytes without gaps. The reader trusts no length, shape or offset: whatever does not add up
// is a DataError naming the file and the tensor. Bytes go between file and tensor without a copy in between; where the
// reader converts, through a block of 64 KiB.
#pragma once

#include <refrain/core/io/file.h>
#include <refrain/core/named_tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace refrain {

using SafetensorsMetadata = std::map<std::string, std::string>;

// Writes tensors (any strides) in the order of the format's reference writer: larger elements first, then by name, the
// data 8-aligned. Throws InvalidArgument for duplicate names, StorageError when writing fails.
void write_safetensors(FileWriter& out, const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata = {});
// The same as a whole file that replaces `path` at once or not at all.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata = {});

// What a reader does when file and tensor are of different floating dtypes.
enum class OtherPrecision : std::uint8_t {
  refuse,
  convert,  // exact to a wider type, to nearest (ties to even) to a narrower one
};

// A tensor that need not exist before it is written, nor after.
struct StoredTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> values;  // of this dtype and shape
};
// The order of a file, in which values are asked for.
void sort_as_stored(std::vector<StoredTensor>& tensors);
void write_safetensors(FileWriter& out, std::vector<StoredTensor> tensors, const SafetensorsMetadata& metadata = {});

class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    std::int64_t begin, end;  // in bytes, from the start of the data
  };

  // Reads and checks the header; no tensor is read yet. Throws DataError.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the file's order
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Null when there is no tensor of this name.
  const Entry* find(std::string_view name) const;

  // Fills a contiguous tensor of the entry's shape and dtype, or any floating dtype for a floating entry if the reader
  // converts. Throws DataError when the tensor is missing or differs.
  void read_into(std::string_view name, const Tensor& tensor, OtherPrecision other = OtherPrecision::refuse) const;
  // Fills a contiguous tensor with elements of the entry, from the one numbered `first` on, in row-major order.
  void read_part_into(std::string_view name, std::int64_t first, const Tensor& tensor, OtherPrecision other = OtherPrecision::refuse) const;
  Tensor read(std::string_view name, const Device& device = Device::cpu()) const;

 private:
  FileReader file_;
  std::int64_t data_start_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
  SafetensorsMetadata metadata_;
};

}  // namespace refrain
