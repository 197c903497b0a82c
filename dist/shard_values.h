// Parameters that are whole only while a stage that reads them computes. Internal to Sharded.
//
// Pieces of a unit lie in one tensor, the unit's home. To fetch a unit, all ranks' homes are gathered into a message, from which
// the parameters are copied; in a world of one they are copied from their home.
#pragma once

#include <refrain/core/copier.h>
#include <refrain/dist/newborn_pieces.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/shard_layout.h>
#include <refrain/dist/shard_units.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::detail {

class ShardValues {
 public:
  // Takes rank 0's values as they are, on every rank, and evicts the parameters; of those that are evicted, takes the newborn pieces. Homes are on `home`.
  ShardValues(ProcessGroup& group, const ShardUnits& units, const Device& home, NewbornPieces* newborn);

  // This rank's piece of a parameter, in its unit's home.
  Tensor piece(std::size_t parameter) const;

  // Stages between these two: with a key as in the last pass of that key, without one after the other.
  void begin_pass(std::string_view key);
  void end_pass();
  bool knows(std::string_view key) const { return known_.contains(key); }

  // Fetches what a stage reads, gives back what neither it nor the next one does, and begins to fetch the next one's.
  void enter(std::uint32_t stage);
  // Fetches and gives nothing back.
  void require(std::uint32_t stage);

 private:
  enum class Where : std::uint8_t { away, coming, here };
  struct Unit {
    const ShardUnit* unit;
    ShardLayout layout;
    Tensor home;
    std::uint64_t version = 0;  // of the home, as the parameters last had it
    Where where = Where::away;
    Tensor message = {};        // while it is coming, where there are other ranks
    Work work = {};
    Copier::Ticket ticket = Copier::kDone;
  };
  Tensor parameter(const Unit& unit, std::size_t i) const { return units_.parameters[unit.unit->parameters[i]].tensor; }
  void make_home(Unit& unit, const Device& device, NewbornPieces* newborn);
  void begin_fetch(Unit& unit);
  void end_fetch(Unit& unit);
  void give_back(Unit& unit);
  std::optional<std::uint32_t> next_after(std::uint32_t stage);

  ProcessGroup& group_;
  ShardUnits units_;
  std::vector<Unit> kept_;
  Copier copier_;
  // Of the pass that goes on:
  std::string key_;
  std::optional<std::uint32_t> stage_;
  std::vector<std::uint32_t> entered_;
  bool is_as_known_ = false;
  std::map<std::string, std::vector<std::uint32_t>, std::less<>> known_;
};

}  // namespace refrain::detail
