#include <refrain/dist/shard_values.h>

#include <refrain/dist/buckets.h>

#include <algorithm>

namespace refrain::detail {

namespace {

// Messages belong to no module of the model.
struct MessageScope {
  KindScope kind{MemoryKind::communication};
  ModuleScope root{ModulePath::root()};
  ModuleScope module{"shards"};
};

}  // namespace

ShardValues::ShardValues(ProcessGroup& group, const ShardUnits& units, const Device& home, NewbornPieces* newborn)
    : group_(group), units_(units) {
  for (const ShardUnit& unit : units_.units) {
    std::vector<std::int64_t> numels;
    for (const std::size_t i : unit.parameters) numels.push_back(units_.parameters[i].tensor.numel());
    kept_.push_back({&unit, ShardLayout(numels, unit.dtype, group_.world_size(), 0), {}});
    make_home(kept_.back(), home, newborn);
  }
}

void ShardValues::make_home(Unit& unit, const Device& device, NewbornPieces* newborn) {
  {
    const KindScope kind(MemoryKind::parameter);
    const ModuleScope module(parameter(unit, 0).storage()->tag().module);
    unit.home = zeros({unit.layout.counts()[std::size_t(group_.rank())]}, unit.layout.dtype(), device);
  }
  for (std::size_t i = 0; i < unit.unit->parameters.size(); ++i) {
    const Tensor whole = parameter(unit, i).without_autograd();
    if (!whole.storage()->is_present()) {
      const std::string& name = units_.parameters[unit.unit->parameters[i]].name;
      check(newborn != nullptr, "sharded: parameter '", name, "' is away, and nobody has its values");
      const Tensor piece = newborn->take(name);
      copy_bytes(flat_part(unit.home, unit.layout.offset(i, group_.rank()), piece.numel()), piece);
      continue;
    }
    if (group_.world_size() > 1) group_.broadcast(whole, 0).wait();
    const Piece piece = unit.layout.piece(i, group_.rank());
    copy_bytes(flat_part(unit.home, unit.layout.offset(i, group_.rank()), piece.numel()), flat_part(whole, piece.begin, piece.numel()));
    whole.storage()->evict();
  }
  unit.version = unit.home.storage()->version();
}

Tensor ShardValues::piece(std::size_t index) const {
  for (const Unit& unit : kept_) {
    const std::vector<std::size_t>& members = unit.unit->parameters;
    const auto found = std::find(members.begin(), members.end(), index);
    if (found == members.end()) continue;
    const std::size_t i = std::size_t(found - members.begin());
    return flat_part(unit.home, unit.layout.offset(i, group_.rank()), unit.layout.piece(i, group_.rank()).numel());
  }
  fail<InternalError>("a parameter in no unit");
}

void ShardValues::begin_pass(std::string_view key) {
  key_ = key;
  entered_.clear();
  is_as_known_ = knows(key_);
  stage_.reset();
}

void ShardValues::end_pass() {
  for (Unit& unit : kept_) {
    if (unit.where != Where::away) give_back(unit);
  }
  stage_.reset();
  if (key_.empty()) return;
  // A pass that was cut short, such as one whose step was left out, tells nothing new.
  std::vector<std::uint32_t>& known = known_[key_];
  const bool is_beginning = entered_.size() <= known.size() && std::equal(entered_.begin(), entered_.end(), known.begin());
  if (!is_beginning) known = std::move(entered_);
}

std::optional<std::uint32_t> ShardValues::next_after(std::uint32_t stage) {
  if (key_.empty()) return stage + 1 < units_.num_stages ? std::optional(stage + 1) : std::nullopt;
  const std::size_t at = entered_.size();
  entered_.push_back(stage);
  if (!is_as_known_) return std::nullopt;
  const std::vector<std::uint32_t>& known = known_.at(key_);
  is_as_known_ = at < known.size() && known[at] == stage;
  return is_as_known_ && at + 1 < known.size() ? std::optional(known[at + 1]) : std::nullopt;
}

void ShardValues::enter(std::uint32_t stage) {
  if (stage_ == stage) return;
  stage_ = stage;
  const std::optional<std::uint32_t> next = next_after(stage);
  for (Unit& unit : kept_) {
    if (unit.where == Where::away || unit.unit->is_of(stage) || (next && unit.unit->is_of(*next))) continue;
    give_back(unit);
  }
  require(stage);
  if (!next) return;
  for (Unit& unit : kept_) {
    if (unit.where == Where::away && unit.unit->is_of(*next)) begin_fetch(unit);
  }
}

void ShardValues::require(std::uint32_t stage) {
  for (Unit& unit : kept_) {
    if (unit.where == Where::away && unit.unit->is_of(stage)) begin_fetch(unit);
  }
  for (Unit& unit : kept_) {
    if (unit.where == Where::coming && unit.unit->is_of(stage)) end_fetch(unit);
  }
}

void ShardValues::begin_fetch(Unit& unit) {
  unit.where = Where::coming;
  if (group_.world_size() == 1) {
    for (std::size_t i = 0; i < unit.unit->parameters.size(); ++i) {
      const Tensor whole = parameter(unit, i).without_autograd();
      whole.storage()->restore(MemoryKind::staging);
      unit.ticket = copier_.begin(whole, flat_part(unit.home, unit.layout.offset(i, 0), whole.numel()));
    }
    return;
  }
  const MessageScope scope;
  const int rank = group_.rank();
  unit.message = empty({unit.layout.numel()}, unit.layout.dtype(), group_.device());
  const Tensor own = flat_part(unit.message, unit.layout.section(rank), unit.home.numel());
  copy_bytes(own, unit.home);
  unit.work = group_.all_gather(own, unit.message, unit.layout.counts());
}

void ShardValues::end_fetch(Unit& unit) {
  unit.where = Where::here;
  const bool is_new = unit.version != unit.home.storage()->version();
  unit.version = unit.home.storage()->version();
  if (group_.world_size() == 1) {
    copier_.wait(unit.ticket);
  } else {
    unit.work.wait();
    unit.work = {};
    for (std::size_t i = 0; i < unit.unit->parameters.size(); ++i) {
      const Tensor whole = parameter(unit, i).without_autograd();
      whole.storage()->restore(MemoryKind::staging);
      for (int rank = 0; rank < group_.world_size(); ++rank) {
        const Piece piece = unit.layout.piece(i, rank);
        copy_bytes(flat_part(whole, piece.begin, piece.numel()),
                   flat_part(unit.message, unit.layout.section(rank) + unit.layout.offset(i, rank), piece.numel()));
      }
    }
    unit.message = {};
  }
  // What was saved of the old values would not be what backward reads.
  for (std::size_t i = 0; is_new && i < unit.unit->parameters.size(); ++i) parameter(unit, i).storage()->bump_version();
}

void ShardValues::give_back(Unit& unit) {
  const bool has_storage = unit.where == Where::here || group_.world_size() == 1;
  unit.where = Where::away;
  copier_.wait(unit.ticket);
  for (std::size_t i = 0; has_storage && i < unit.unit->parameters.size(); ++i) parameter(unit, i).storage()->evict();
  Work work = std::move(unit.work);
  unit.work = {};
  work.wait();  // of a fetch that nobody needs after all
  unit.message = {};
}

}  // namespace refrain::detail
