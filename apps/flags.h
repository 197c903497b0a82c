// Flags of a single command, beside the configuration's keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::apps {

// Goes over a command's arguments, one after another:
//
//   for (FlagReader reader(arguments); reader.next();)
//     if (reader.argument() == "--json") is_json = true;
//     else if (reader.flag() == "--html") html = reader.value();  // --html=FILE or --html FILE
//
// A flag that takes no value is compared as a whole argument, so that `--json=3` is not one.
class FlagReader {
 public:
  explicit FlagReader(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  // Whether there is one more, which the following are about.
  bool next();
  const std::string& argument() const { return arguments_[next_ - 1]; }
  const std::string& flag() const { return flag_; }  // the argument up to its '='
  // What stands behind the '=', or else the next argument, which is taken with it. Throws InvalidArgument where there is none,
  // or nothing in it.
  std::string value();

 private:
  const std::vector<std::string>& arguments_;
  std::string flag_;
  std::size_t next_ = 0;
};

// A flag's value as a number of `things` from 1 to `most`; throws InvalidArgument naming both.
std::int64_t count_of(const std::string& flag, const std::string& value, std::string_view things,
                      std::int64_t most = std::int64_t{1} << 40);

}  // namespace refrain::apps
