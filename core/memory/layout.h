// The offsets of every allocation of a program that repeats itself, packed from one rehearsal of it.
//
// The program says where its parts begin (begin_section); a part of one key allocates the same each time. What lasts
// (parameters, optimizer state, input slots) is stacked at the bottom of the arena in the order it is made; everything else has
// an offset by its number in its section. A program that does something else than in the rehearsal, or on a device that is in
// use, loses nothing but the packing: an offset that is taken, or a size that does not come, leaves the choice to the arena.
#pragma once

#include <refrain/core/device.h>
#include <refrain/core/memory/placement.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

struct Layout {
  struct Entry {
    std::int64_t bytes, offset;  // rounded to Arena::kAlignment; offset -1: the arena chooses
  };
  std::vector<Entry> lasting;
  std::map<std::string, std::vector<Entry>, std::less<>> sections;  // "" is what comes before the first
  std::int64_t end = 0;    // where the highest block ends
  std::int64_t bound = 0;  // the most bytes alive at a time, rounded: no layout ends lower
};

// A part of the program that runs on this device begins. Does nothing where nobody listens.
void begin_section(const Device& device, std::string_view key);

// Records a rehearsal on a plan device that nobody has used yet, with a timeline of its own.
class LayoutRecorder {
 public:
  explicit LayoutRecorder(const Device& device);
  // Packs what has happened up to now: of sections with the same key the last one. An empty layout, which leaves all to the
  // arena, where there are so many blocks that packing would take long.
  Layout pack() const;

 private:
  struct Section {
    std::string key;
    std::size_t begin;  // number of its first allocation
  };
  class Listener;
  Device device_;
  std::shared_ptr<std::vector<Section>> sections_;
};

// Follows a layout; for Device::set_placement.
std::unique_ptr<Placement> follow(std::shared_ptr<const Layout> layout);

}  // namespace refrain
