#include <refrain/train/planned_data.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/data/cifar10.h>
#include <refrain/data/idx.h>

#include <optional>

namespace refrain {

namespace {

constexpr std::int64_t kAssumedTrain = 60000, kAssumedTest = 10000;

struct Found {
  std::int64_t num_train = 0, num_test = 0;
  Shape image_shape = {};
};

// Throws DataError.
Found read_sizes(const Config& config) {
  if (config.data_format == "text") {
    const std::int64_t bytes = FileReader(config.data_path).size();
    const Found found{num_text_windows(bytes, config.context, config.test_share, Split::train),
                      num_text_windows(bytes, config.context, config.test_share, Split::test)};
    check<DataError>(found.num_train >= 1 && found.num_test >= 1, config.data_path, ": holds no whole window of ", config.context,
                     " bytes");
    return found;
  }
  const auto sizes = [&](Split split) {
    return config.data_format == "cifar10" ? cifar10_sizes(config.data_path, split) : mnist_sizes(config.data_path, split);
  };
  const DatasetSizes train = sizes(Split::train), test = sizes(Split::test);
  check<DataError>(train.image_shape == test.image_shape, config.data_path, ": images to train on are ", train.image_shape, ", to test on ",
                   test.image_shape);
  return {train.size, test.size, train.image_shape};
}

bool fits(const Config& config, const Shape& images) {
  return (config.channels == 0 || config.channels == images[0]) &&
         (config.image_size == 0 || (config.image_size == images[1] && config.image_size == images[2]));
}

// As configured, or as the format always has it.
Shape configured_images(const Config& config) {
  const bool is_cifar10 = config.data_format == "cifar10";
  const std::int64_t size = config.image_size > 0 ? config.image_size : is_cifar10 ? 32 : 0;
  check(size > 0, "image_size: the data is not there to tell, and the configuration does not");
  return {config.channels > 0 ? config.channels : is_cifar10 ? 3 : 1, size, size};
}

}  // namespace

PlannedData find_planned_data(const Config& config, std::int64_t num_train, std::int64_t num_test) {
  check(num_train >= 0 && num_test >= 0, "plan: expected numbers of samples of at least 0, got ", num_train, " and ", num_test);
  PlannedData data;
  const bool is_text = config.data_format == "text";
  std::optional<Found> found;
  try {
    found = read_sizes(config);
    if (!is_text && !fits(config, found->image_shape)) {
      data.notes.push_back(concat("images in ", config.data_path, " are ", found->image_shape,
                                  ", unlike the configuration's: planned as configured; training would refuse them"));
      found.reset();
    }
  } catch (const DataError& error) {
    data.notes.push_back(concat("data not read: ", error.what()));
  }
  data.is_found = found.has_value();
  if (is_text) {
    data.train = {.input_shape = {config.context}, .input_dtype = DType::i64, .target_shape = {config.context}, .num_classes = 256};
  } else {
    const std::int64_t classes = config.num_classes > 0 ? config.num_classes : 10;
    data.train = {.input_shape = found ? found->image_shape : configured_images(config), .num_classes = classes};
    if (found && config.data_format == "cifar10") data.train.num_classes = 10;
  }
  data.test = data.train;
  data.train.size = num_train > 0 ? num_train : found ? found->num_train : kAssumedTrain;
  data.test.size = num_test > 0 ? num_test : found ? found->num_test : kAssumedTest;
  if (!found && (num_train == 0 || num_test == 0))
    data.notes.push_back(concat("assumed ", data.train.size, " samples to train on and ", data.test.size, " to test on"));
  return data;
}

}  // namespace refrain
