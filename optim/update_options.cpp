#include <refrain/optim/update_options.h>

namespace refrain {

RandomKey update_key(std::uint64_t seed, std::int64_t step, std::string_view parameter_name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : parameter_name) hash = (hash ^ std::uint8_t(c)) * 0x100000001b3u;
  return {seed, std::uint32_t(step), std::uint32_t(hash & 0xffffffu), std::uint32_t(hash >> 24 & 0x7fffu) << 1, RandomPurpose::update};
}

}  // namespace refrain
