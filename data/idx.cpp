#include <refrain/data/idx.h>

#include <refrain/data/byte_stream.h>

#include <cstdio>

namespace refrain {

namespace {

constexpr std::uint32_t kBytesMagic = 0x00000800;  // plus the number of dims

std::string hex(std::uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", unsigned(value));
  return text;
}

std::string describe(std::uint32_t magic) {
  std::string text = concat("magic ", magic, " (", hex(magic), ")");
  if (magic == kBytesMagic + 1) text += ", a file of labels";
  else if (magic == kBytesMagic + 3) text += ", a file of images";
  else if (magic >> 16 == 0x1f8b) text += ", gzip inside gzip";
  else if (magic >> 16 == 0 && (magic >> 8) != 0 && (magic >> 8) != 8) text += ", elements that are not bytes";
  return text;
}

std::uint32_t read_big_endian(ByteStream& stream, const std::string& name, const char* what) {
  std::uint8_t b[4];
  const std::size_t got = stream.read(b, 4);
  check<DataError>(got == 4, name, ": expected 4 bytes of ", what, ", found ", got, ": the file is cut");
  return std::uint32_t(b[0]) << 24 | std::uint32_t(b[1]) << 16 | std::uint32_t(b[2]) << 8 | b[3];
}

std::filesystem::path plain_or_gzip(const std::filesystem::path& directory, const std::string& name) {
  std::error_code error;
  const std::filesystem::path packed = directory / (name + ".gz");
  return std::filesystem::exists(packed, error) && !std::filesystem::exists(directory / name, error) ? packed : directory / name;
}

// The header's extents, and into `product` their product.
std::vector<std::int64_t> read_extents(ByteStream& stream, const std::string& name, int num_dims, std::int64_t& product) {
  const std::uint32_t magic = read_big_endian(stream, name, "magic");
  check<DataError>(magic == kBytesMagic + std::uint32_t(num_dims), name, ": expected ", describe(kBytesMagic + std::uint32_t(num_dims)), "; found ",
                   describe(magic));
  std::vector<std::int64_t> extents;
  product = 1;
  for (int i = 0; i < num_dims; ++i) {
    extents.push_back(read_big_endian(stream, name, "extents"));
    check<DataError>(!__builtin_mul_overflow(product, extents.back(), &product), name, ": the extents' product overflows");
  }
  return extents;
}

std::filesystem::path images_of_mnist(const std::filesystem::path& directory, Split split) {
  return plain_or_gzip(directory, split == Split::train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte");
}

}  // namespace

IdxData read_idx(const std::filesystem::path& path, int num_dims) {
  const std::string name = path.string();
  const std::unique_ptr<ByteStream> stream = ByteStream::open(path);
  IdxData data;
  std::int64_t expected = 0;
  data.extents = read_extents(*stream, name, num_dims, expected);
  data.bytes = read_growing(*stream, expected);
  check<DataError>(std::int64_t(data.bytes.size()) == expected, name, ": expected ", expected, " bytes after the header, found ", data.bytes.size(),
                   ": the file is cut");
  std::uint8_t more = 0;
  check<DataError>(stream->read(&more, 1) == 0, name, ": expected ", expected, " bytes after the header, found more");
  return data;
}

std::shared_ptr<const Dataset> load_idx(const std::filesystem::path& images, const std::filesystem::path& labels, std::int64_t num_classes) {
  IdxData pixels = read_idx(images, 3);
  IdxData classes = read_idx(labels, 1);
  check<DataError>(pixels.extents[0] == classes.extents[0], labels.string(), ": expected ", pixels.extents[0], " labels, one for each image of ",
                   images.string(), ", found ", classes.extents[0]);
  return std::make_shared<MemoryDataset>(images.string(), std::move(pixels.bytes), std::move(classes.bytes),
                                         Shape{1, pixels.extents[1], pixels.extents[2]}, num_classes);
}

std::shared_ptr<const Dataset> load_mnist(const std::filesystem::path& directory, Split split, std::int64_t num_classes) {
  const std::string labels = split == Split::train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte";
  return load_idx(images_of_mnist(directory, split), plain_or_gzip(directory, labels), num_classes);
}

DatasetSizes mnist_sizes(const std::filesystem::path& directory, Split split) {
  const std::filesystem::path path = images_of_mnist(directory, split);
  std::int64_t product = 0;
  const std::vector<std::int64_t> extents = read_extents(*ByteStream::open(path), path.string(), 3, product);
  check<DataError>(product > 0, path.string(), ": holds no pixel");
  return {extents[0], {1, extents[1], extents[2]}};
}

}  // namespace refrain
