// Reading a command's own flags and the numbers behind them.
#include "flags.h"

#include <refrain/core/check.h>

#include <charconv>

namespace refrain::apps {

bool FlagReader::next() {
  if (next_ == arguments_.size()) return false;
  ++next_;
  flag_ = argument().substr(0, argument().find('='));
  return true;
}

std::string FlagReader::value() {
  const bool is_inside = flag_.size() < argument().size();
  check(is_inside || next_ < arguments_.size(), flag_, ": expected a value after it");
  const std::string text = is_inside ? argument().substr(flag_.size() + 1) : arguments_[next_++];
  check(!text.empty(), flag_, ": expected a value that is not empty");
  return text;
}

std::int64_t count_of(const std::string& flag, const std::string& value, std::string_view things, std::int64_t most) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  check(error == std::errc{} && end == value.data() + value.size() && count >= 1 && count <= most, flag, ": expected a number of ", things,
        " from 1 to ", most, ", got '", value, "'");
  return count;
}

}  // namespace refrain::apps
