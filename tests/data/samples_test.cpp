#include <refrain/data/samples.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <set>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

// `count` images whose pixels are 1, 2, 3, …, different in each channel and image.
std::shared_ptr<const Dataset> numbered_images(int count, const Shape& shape) {
  std::vector<std::uint8_t> pixels, labels;
  for (int i = 0; i < count; ++i) {
    for (std::int64_t p = 0; p < numel_of(shape); ++p) pixels.push_back(std::uint8_t(1 + (i * 31 + p) % 255));
    labels.push_back(std::uint8_t(i % 10));
  }
  return std::make_shared<MemoryDataset>("numbered", pixels, labels, shape, 10);
}

std::vector<float> read(const ImageSamples& samples, std::int64_t index, std::uint32_t epoch) {
  std::vector<float> values(std::size_t(numel_of(samples.input_shape())));
  std::int64_t target = -1;
  samples.write(index, epoch, reinterpret_cast<std::byte*>(values.data()), &target);
  CHECK(target == index % 10);
  return values;
}

std::vector<std::int64_t> as_pixels(const std::vector<float>& values) {
  std::vector<std::int64_t> pixels;
  for (const float value : values) pixels.push_back(std::lround(value * 255));
  return pixels;
}

}  // namespace

TEST_CASE("image samples: values are (pixel / 255 - mean) / std of their channel") {
  const ImageSamples samples(numbered_images(2, {2, 1, 2}), {.mean = {0.5, 0.25}, .std = {2, 4}});
  const std::vector<float> values = read(samples, 0, 0);
  CHECK(values == std::vector<float>{float((1 / 255.0 - 0.5) / 2), float((2 / 255.0 - 0.5) / 2), float((3 / 255.0 - 0.25) / 4),
                                     float((4 / 255.0 - 0.25) / 4)});
}

TEST_CASE("image samples: one mean serves all channels, none leaves pixels between 0 and 1") {
  CHECK(read(ImageSamples(numbered_images(1, {3, 1, 1}), {.mean = {0.5}}), 0, 0)[2] == float(3 / 255.0 - 0.5));
  CHECK(read(ImageSamples(numbered_images(1, {3, 1, 1}), {}), 0, 0)[1] == float(2 / 255.0));
  CHECK_THROWS_AS(ImageSamples(numbered_images(1, {3, 1, 1}), {.mean = {0.5, 0.5}}), InvalidArgument);
  CHECK_THROWS_AS(ImageSamples(numbered_images(1, {1, 1, 1}), {.std = {0}}), InvalidArgument);
}

TEST_CASE("image samples: a flip is the mirror image or the image, each in about half of the draws") {
  const ImageSamples samples(numbered_images(1, {1, 2, 3}), {.flip = true, .seed = 3});
  int flipped = 0;
  for (std::uint32_t epoch = 0; epoch < 400; ++epoch) {
    const std::vector<std::int64_t> pixels = as_pixels(read(samples, 0, epoch));
    if (pixels == std::vector<std::int64_t>{3, 2, 1, 6, 5, 4}) ++flipped;
    else CHECK(pixels == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
  }
  CHECK(flipped > 150);
  CHECK(flipped < 250);
}

TEST_CASE("image samples: a crop is the image moved by at most the padding, with black from outside, and all moves occur") {
  const ImageSamples samples(numbered_images(1, {1, 3, 3}), {.crop_padding = 1, .seed = 5});
  std::set<std::vector<std::int64_t>> seen, possible;
  for (int dy = -1; dy <= 1; ++dy)
    for (int dx = -1; dx <= 1; ++dx) {
      std::vector<std::int64_t> moved;
      for (int y = 0; y < 3; ++y)
        for (int x = 0; x < 3; ++x) {
          const bool is_inside = y + dy >= 0 && y + dy < 3 && x + dx >= 0 && x + dx < 3;
          moved.push_back(is_inside ? (y + dy) * 3 + x + dx + 1 : 0);
        }
      possible.insert(moved);
    }
  for (std::uint32_t epoch = 0; epoch < 200; ++epoch) seen.insert(as_pixels(read(samples, 0, epoch)));
  CHECK(seen == possible);
}

TEST_CASE("image samples: augmentation depends on seed, epoch and sample, and repeats exactly") {
  const auto dataset = numbered_images(50, {1, 8, 8});
  const ImageTransform transform{.crop_padding = 4, .flip = true, .seed = 1};
  ImageTransform other_seed = transform;
  other_seed.seed = 2;
  const ImageSamples samples(dataset, transform), again(dataset, transform), other(dataset, other_seed);
  int differ_by_epoch = 0, differ_by_seed = 0;
  for (std::int64_t i = 49; i >= 0; --i) {
    CHECK(read(samples, i, 7) == read(again, i, 7));
    differ_by_epoch += read(samples, i, 7) != read(samples, i, 8);
    differ_by_seed += read(samples, i, 7) != read(other, i, 7);
  }
  CHECK(differ_by_epoch > 40);
  CHECK(differ_by_seed > 40);
}

TEST_CASE("text samples: windows follow one another, targets are inputs one byte later, the splits share nothing") {
  const ScratchDirectory scratch;
  std::string text;
  for (int i = 0; i < 100; ++i) text += char(i + 128);
  const auto path = scratch.write("text", text);
  const TextSamples train(path, 8, 0.3, Split::train), test(path, 8, 0.3, Split::test);
  CHECK(train.size() == 8);  // 70 bytes: 8 windows of 8 and one more byte
  CHECK(test.size() == 3);   // 30 bytes
  std::int64_t input[8], target[8];
  train.write(7, 0, reinterpret_cast<std::byte*>(input), target);
  CHECK(input[0] == 56 + 128);
  CHECK(target[0] == 57 + 128);
  CHECK(target[7] == 64 + 128);
  test.write(0, 0, reinterpret_cast<std::byte*>(input), target);
  CHECK(input[0] == 70 + 128);
}

TEST_CASE("text samples: a file too short for one window is refused with expected and found") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH(TextSamples(scratch.write("a", "abcdefgh"), 8, 0.5, Split::train),
                    Catch::Contains("at least 9 bytes for training, found 4"));
  CHECK_THROWS_AS(TextSamples(scratch.write("b", ""), 8, 0.5, Split::test), DataError);
}
