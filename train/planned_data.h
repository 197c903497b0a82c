// The sizes of the data a plan is for: from the headers of the files where they are, else from the configuration.
#pragma once

#include <refrain/data/planned_samples.h>
#include <refrain/train/config.h>

#include <string>
#include <vector>

namespace refrain {

struct PlannedData {
  PlannedSamples::Sizes train, test;
  bool is_found = false;            // the files at data_path said so
  std::vector<std::string> notes;   // what was assumed, and why
};

// Reads headers and lengths of files, never the data. Files that are not there, cannot be read, or hold images of another
// size than the configuration's count as absent, with a note; then there are as many samples as Fashion-MNIST has, 60000 and
// 10000. `num_train` and `num_test` above 0 are taken as they are. Throws InvalidArgument naming the key of a size that
// nothing tells.
PlannedData find_planned_data(const Config& config, std::int64_t num_train = 0, std::int64_t num_test = 0);

}  // namespace refrain
