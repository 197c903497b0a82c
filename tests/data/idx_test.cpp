#include <refrain/data/byte_stream.h>
#include <refrain/data/idx.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <zlib.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

std::string big_endian(std::uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string idx(std::uint32_t magic, const std::vector<std::uint32_t>& extents, const std::string& data) {
  std::string bytes = big_endian(magic);
  for (const std::uint32_t extent : extents) bytes += big_endian(extent);
  return bytes + data;
}

std::string gzip(const std::string& bytes) {
  z_stream deflate{};
  deflateInit2(&deflate, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(bytes.size() + 1000, '\0');
  deflate.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  deflate.avail_in = uInt(bytes.size());
  deflate.next_out = reinterpret_cast<Bytef*>(out.data());
  deflate.avail_out = uInt(out.size());
  ::deflate(&deflate, Z_FINISH);
  out.resize(deflate.total_out);
  deflateEnd(&deflate);
  return out;
}

const std::string kTwoImages = idx(0x803, {2, 2, 3}, "abcdefghijkl");
const std::string kTwoLabels = idx(0x801, {2}, std::string("\1\0", 2));

}  // namespace

TEST_CASE("idx: images and labels come back in order, plain or gzipped under any name") {
  const ScratchDirectory scratch;
  const bool is_gzipped = GENERATE(false, true);
  const auto images = scratch.write("images", is_gzipped ? gzip(kTwoImages) : kTwoImages);
  const auto labels = scratch.write("labels.gz", is_gzipped ? kTwoLabels : gzip(kTwoLabels));
  const auto dataset = load_idx(images, labels);
  CHECK(dataset->size() == 2);
  CHECK(dataset->image_shape() == Shape{1, 2, 3});
  CHECK(dataset->label(0) == 1);
  CHECK(dataset->label(1) == 0);
  std::uint8_t pixels[7] = {0, 0, 0, 0, 0, 0, 99};
  dataset->read(1, pixels);
  CHECK(std::string(pixels, pixels + 6) == "ghijkl");
  CHECK(pixels[6] == 99);
}

TEST_CASE("idx: a file that is cut, plain or gzip, is refused with expected and found") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH(read_idx(scratch.write("a", kTwoImages.substr(0, kTwoImages.size() - 1)), 3),
                    Catch::Contains(scratch.path().string()) && Catch::Contains("expected 12 bytes after the header, found 11"));
  CHECK_THROWS_WITH(read_idx(scratch.write("b", kTwoImages.substr(0, 10)), 3), Catch::Contains("expected 4 bytes of extents, found 2"));
  CHECK_THROWS_WITH(read_idx(scratch.write("c", ""), 3), Catch::Contains("expected 4 bytes of magic, found 0"));
  const std::string packed = gzip(kTwoImages);
  for (std::size_t length = 2; length < packed.size(); ++length)
    CHECK_THROWS_AS(read_idx(scratch.write("d", packed.substr(0, length)), 3), DataError);
  CHECK_THROWS_WITH(read_idx(scratch / "absent", 3), Catch::Contains("absent"));
}

TEST_CASE("idx: a file that goes on after its data is refused") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH(read_idx(scratch.write("a", kTwoImages + "x"), 3), Catch::Contains("found more"));
  CHECK_THROWS_WITH(read_idx(scratch.write("b", gzip(kTwoImages + "x")), 3), Catch::Contains("found more"));
  CHECK_THROWS_WITH(read_idx(scratch.write("c", gzip(kTwoImages) + "junk"), 3), Catch::Contains("damaged"));
}

TEST_CASE("idx: labels given as images, wrong magics and gzip inside gzip are told apart") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH(read_idx(scratch.write("a", kTwoLabels), 3),
                    Catch::Contains("0x00000803") && Catch::Contains("found magic 2049 (0x00000801), a file of labels"));
  CHECK_THROWS_WITH(read_idx(scratch.write("b", kTwoImages), 1), Catch::Contains("found magic 2051 (0x00000803), a file of images"));
  CHECK_THROWS_WITH(read_idx(scratch.write("c", gzip(gzip(kTwoImages))), 3), Catch::Contains("gzip inside gzip"));
  CHECK_THROWS_WITH(read_idx(scratch.write("d", idx(0xd03, {1, 1, 1}, "abcd")), 3), Catch::Contains("elements that are not bytes"));
  CHECK_THROWS_AS(read_idx(scratch.write("e", "just some text"), 3), DataError);
}

TEST_CASE("idx: a header's promise of terabytes reserves nothing") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH(read_idx(scratch.write("a", idx(0x803, {60000, 65535, 65535}, "abc")), 3), Catch::Contains("found 3"));
  CHECK_THROWS_WITH(read_idx(scratch.write("b", idx(0x803, {0xffffffff, 0xffffffff, 0xffffffff}, "abc")), 3), Catch::Contains("overflow"));
}

TEST_CASE("idx: another number of labels than images, images without pixels and labels out of range are refused") {
  const ScratchDirectory scratch;
  const auto images = scratch.write("images", kTwoImages);
  CHECK_THROWS_WITH(load_idx(images, scratch.write("a", idx(0x801, {3}, "\1\2\3"))),
                    Catch::Contains("expected 2 labels") && Catch::Contains("found 3"));
  CHECK_THROWS_WITH(load_idx(images, scratch.write("b", idx(0x801, {2}, "\1\12"))),
                    Catch::Contains("label 10 of sample 1 is not below 10"));
  CHECK_THROWS_AS(load_idx(scratch.write("c", idx(0x803, {2, 0, 3}, "")), scratch.write("d", kTwoLabels)), DataError);
}

TEST_CASE("idx: the packaged Fashion-MNIST has 60,000 and 10,000 samples, a tenth of each class") {
  const std::filesystem::path directory = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(directory)) {
    WARN("the package dataset-fashion-mnist is not installed");
    return;
  }
  for (const auto& [split, size] : {std::pair(Split::train, 60000), std::pair(Split::test, 10000)}) {
    const auto dataset = load_mnist(directory, split);
    REQUIRE(dataset->size() == size);
    CHECK(dataset->image_shape() == Shape{1, 28, 28});
    std::vector<int> count(10);
    for (std::int64_t i = 0; i < dataset->size(); ++i) ++count[std::size_t(dataset->label(i))];
    CHECK(count == std::vector<int>(10, size / 10));
  }
}

TEST_CASE("idx: a file with any bytes changed, plain or gzip, loads or is refused, and never does anything else") {
  const ScratchDirectory scratch;
  const std::string good = GENERATE(false, true) ? gzip(kTwoImages) : kTwoImages;
  std::uint32_t random = 99;
  const auto next = [&](std::size_t below) { return std::size_t((random = random * 1664525u + 1013904223u) >> 8) % below; };
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    bytes[next(bytes.size())] = char(next(256));
    if (next(3) == 0) bytes.resize(next(bytes.size()));
    try {
      const IdxData data = read_idx(scratch.write("changed", bytes), 3);
      CHECK(data.bytes.size() == std::size_t(data.extents[0] * data.extents[1] * data.extents[2]));
    } catch (const DataError&) {
      ++refused;
    }
  }
  CHECK(refused > 100);
}
