#include <refrain/data/cifar10.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

// A record whose red, green and blue planes hold the given bytes.
std::string record(int label, char red, char green, char blue) {
  return std::string(1, char(label)) + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

void write_batches(const ScratchDirectory& scratch, const std::string& folder) {
  for (int file = 1; file <= 5; ++file) {
    std::string bytes;
    for (int i = 0; i < 3; ++i) bytes += record((file + i) % 10, char(file), char(10 + i), 'b');
    scratch.write(folder + "data_batch_" + std::to_string(file) + ".bin", bytes);
  }
  scratch.write(folder + "test_batch.bin", record(9, 'r', 'g', 'b'));
}

}  // namespace

TEST_CASE("cifar10: five files of three records and a test file give 15 and 1 samples, each label kept, planes in order") {
  const ScratchDirectory scratch;
  write_batches(scratch, GENERATE("", "cifar-10-batches-bin/"));
  const auto train = load_cifar10(scratch.path(), Split::train);
  REQUIRE(train->size() == 15);
  CHECK(train->image_shape() == Shape{3, 32, 32});
  std::vector<std::uint8_t> pixels(3072);
  for (int file = 1; file <= 5; ++file)
    for (int i = 0; i < 3; ++i) {
      const int index = (file - 1) * 3 + i;
      CHECK(train->label(index) == (file + i) % 10);
      train->read(index, pixels.data());
      CHECK(pixels[0] == file);
      CHECK(pixels[1023] == file);
      CHECK(pixels[1024] == 10 + i);
      CHECK(pixels[2047] == 10 + i);
      CHECK(pixels[2048] == 'b');
      CHECK(pixels[3071] == 'b');
    }
  const auto test = load_cifar10(scratch.path(), Split::test);
  CHECK(test->size() == 1);
  CHECK(test->label(0) == 9);
}

TEST_CASE("cifar10: an absent fifth batch, a cut record and a label above 9 are refused by name") {
  const ScratchDirectory scratch;
  write_batches(scratch, "");
  scratch.write("data_batch_5.bin", record(1, 'r', 'g', 'b').substr(1));
  CHECK_THROWS_WITH(load_cifar10(scratch.path(), Split::train),
                    Catch::Contains("data_batch_5.bin") && Catch::Contains("3073") && Catch::Contains("found 3072"));
  scratch.write("data_batch_5.bin", record(1, 'r', 'g', 'b') + record(10, 'r', 'g', 'b'));
  CHECK_THROWS_WITH(load_cifar10(scratch.path(), Split::train), Catch::Contains("found 10 in record 1"));
  std::filesystem::remove(scratch / "data_batch_5.bin");
  CHECK_THROWS_WITH(load_cifar10(scratch.path(), Split::train), Catch::Contains("data_batch_5.bin"));
}
