#include <refrain/dist/shard_gradients.h>

#include <refrain/core/view.h>
#include <refrain/dist/buckets.h>
#include <refrain/kernels/elementwise/elementwise.h>

#include <algorithm>

namespace refrain::detail {

namespace {

struct MessageScope {
  explicit MessageScope(MemoryKind of_kind) : kind(of_kind) {}
  KindScope kind;
  ModuleScope root{ModulePath::root()};
  ModuleScope module{"shards"};
};

}  // namespace

ShardGradients::ShardGradients(ProcessGroup& group, const ShardUnits& units, std::vector<Tensor> pieces, ReduceOp op, ProcessGroup* across)
    : group_(group), across_(across), op_(op), parameters_(units.parameters), pieces_(std::move(pieces)) {
  for (const ShardUnit& unit : units.units) {
    std::vector<std::size_t> trained;
    std::vector<std::int64_t> numels;
    for (const std::size_t i : unit.parameters) {
      if (!parameters_[i].tensor.requires_grad()) continue;
      trained.push_back(i);
      numels.push_back(parameters_[i].tensor.numel());
    }
    if (trained.empty()) continue;
    // The marks tell, for each parameter, on how many ranks there is a gradient.
    const ShardLayout layout(numels, unit.dtype, group_.world_size(), std::int64_t(trained.size()));
    units_.push_back({.parameters = std::move(trained), .layout = layout, .first_stage = unit.stages.front(), .is_tied = unit.stages.size() > 1});
  }
  // Backward leaves the last stage first, and is done with a tied parameter in its first stage.
  std::stable_sort(units_.begin(), units_.end(), [](const Unit& a, const Unit& b) { return a.first_stage > b.first_stage; });
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t p = 0; p < units_[u].parameters.size(); ++p) {
      const std::size_t index = units_[u].parameters[p];
      places_[index] = {u, p};
      index_of_[parameters_[index].tensor.autograd_slot().get()] = index;
    }
  }
}

BackwardOptions ShardGradients::options(BackwardOptions then, bool is_last) {
  check(!is_running_, "sharded: options() of one backward before finish() of the last");
  is_running_ = true;
  is_last_ = is_last;
  has_backward_ = false;
  then_ = std::move(then);
  is_taken_.assign(parameters_.size(), false);
  num_started_ = 0;
  BackwardOptions options;
  for (Unit& unit : units_) {
    unit.has_grad.assign(unit.parameters.size(), false);
    unit.num_missing = std::int64_t(unit.parameters.size());
    std::vector<Tensor>& leaves = waits(unit) ? options.unfinished : options.leaves;
    for (const std::size_t index : unit.parameters) leaves.push_back(parameters_[index].tensor);
  }
  options.on_final = [this](const Tensor& leaf, bool has_grad) {
    has_backward_ = true;
    take(index_of_.at(leaf.autograd_slot().get()), has_grad);
  };
  return options;
}

void ShardGradients::take(std::size_t index, bool has_grad) {
  const Place place = places_.at(index);
  Unit& unit = units_[place.unit];
  is_taken_[index] = true;
  --unit.num_missing;
  if (!has_grad) return;
  const Tensor& parameter = parameters_[index].tensor;
  if (!unit.message.defined()) unit.message = new_message(unit);
  end_move();
  moving_ = contiguous_values(grad_of(parameter));
  clear_grad(parameter);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const Piece piece = unit.layout.piece(place.part, rank);
    ticket_ = copier_.begin(flat_part(unit.message, unit.layout.section(rank) + unit.layout.offset(place.part, rank), piece.numel()),
                            flat_part(moving_, piece.begin, piece.numel()));
  }
  unit.has_grad[place.part] = true;
}

// Where nothing is sent, what would be the message is made where the piece lives.
Tensor ShardGradients::new_message(const Unit& unit) const {
  const bool is_sent = group_.world_size() > 1 || goes_across();
  const MessageScope scope(is_sent ? MemoryKind::communication : MemoryKind::gradient);
  return zeros({unit.layout.numel()}, unit.layout.dtype(), is_sent ? group_.device() : pieces_[unit.parameters.front()].device());
}

void ShardGradients::end_move() {
  copier_.wait(ticket_);
  moving_ = {};
}

void ShardGradients::leave_stage() {
  if (!is_running_) return;
  for (; num_started_ < units_.size(); ++num_started_) {
    Unit& unit = units_[num_started_];
    if (waits(unit)) continue;
    if (unit.num_missing > 0) return;
    start(unit);
  }
}

void ShardGradients::start(Unit& unit) {
  deliver();
  end_move();
  under_way_ = num_started_;
  if (!unit.message.defined()) unit.message = new_message(unit);
  const MessageScope scope(MemoryKind::communication);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
      const std::int64_t mark = unit.layout.section(rank) + unit.layout.marks(rank) + std::int64_t(p);
      if (unit.has_grad[p]) fill_values(flat_part(unit.message, mark, 1), 1);
    }
  }
  if (group_.world_size() > 1) {
    section_ = empty({unit.layout.counts()[std::size_t(group_.rank())]}, unit.layout.dtype(), group_.device());
    work_ = group_.reduce_scatter(unit.message, section_, unit.layout.counts(), op_);
    return;
  }
  section_ = std::move(unit.message);
  unit.message = {};
  if (goes_across()) {
    add_sum(unit);
    work_ = across_->all_reduce(section_, op_);
  } else {
    begin_way_home(unit);
  }
}

// The reduction under way has ended: its section is added to the update's sum, where pieces live.
void ShardGradients::deliver() {
  if (!under_way_) return;
  Unit& unit = units_[*under_way_];
  under_way_.reset();
  work_.wait();
  work_ = {};
  unit.message = {};
  if (goes_across() && group_.world_size() > 1) {
    const MessageScope scope(MemoryKind::communication);
    add_sum(unit);
    across_->all_reduce(section_, op_).wait();
  }
  if (!at_home_.defined()) begin_way_home(unit);
  copier_.wait(ticket_);
  section_ = {};
  Tensor section = std::move(at_home_);
  at_home_ = {};
  if (unit.sum.defined()) launch(Binary{.op = BinaryOp::add, .a = unit.sum, .b = section, .out = unit.sum});
  else unit.sum = std::move(section);
  unit.had_grad.resize(unit.has_grad.size());
  for (std::size_t p = 0; p < unit.had_grad.size(); ++p) unit.had_grad[p] = unit.had_grad[p] || unit.has_grad[p];
  if (is_last_) announce(unit);
}

void ShardGradients::add_sum(Unit& unit) {
  if (!unit.sum.defined()) return;
  const Tensor sum = to_device(unit.sum, section_.device());
  launch(Binary{.op = BinaryOp::add, .a = sum, .b = section_, .out = section_});
  unit.sum = {};
}

void ShardGradients::begin_way_home(const Unit& unit) {
  const Device& home = pieces_[unit.parameters.front()].device();
  if (home == section_.device()) {
    at_home_ = section_;
  } else {
    const MessageScope scope(MemoryKind::gradient);
    at_home_ = empty(section_.shape(), section_.dtype(), home);
    ticket_ = copier_.begin(at_home_, section_);
  }
  at_home_.storage()->set_kind(MemoryKind::gradient);
}

void ShardGradients::announce(Unit& unit) {
  const int rank = group_.rank();
  std::vector<bool> has_grad = std::move(unit.had_grad);
  const Tensor sum = std::move(unit.sum);
  unit.sum = {};
  unit.had_grad = {};
  if (std::find(has_grad.begin(), has_grad.end(), false) != has_grad.end()) {
    const Tensor marks = flat_part(sum, unit.layout.marks(rank), std::int64_t(has_grad.size()));
    const std::vector<double> values = marks.has_bytes() ? marks.to_vector<double>() : std::vector<double>();
    for (std::size_t p = 0; p < has_grad.size(); ++p) {
      // Without values, what a rank that goes backward does not use is taken to be used by none.
      has_grad[p] = values.empty() ? has_grad[p] || !has_backward_ : values[p] != 0;
    }
  }
  for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
    const Tensor& piece = pieces_[unit.parameters[p]];
    if (has_grad[p]) set_grad(piece, flat_part(sum, unit.layout.offset(p, rank), piece.numel()));
  }
  if (!then_.on_final) return;
  for (std::size_t p = 0; p < unit.parameters.size(); ++p) then_.on_final(pieces_[unit.parameters[p]], has_grad[p]);
}

void ShardGradients::finish() {
  if (!is_running_) return;
  for (const Unit& unit : units_) {
    for (const std::size_t index : unit.parameters) {
      if (!waits(unit) && !is_taken_[index]) take(index, grad_of(parameters_[index].tensor).defined());
    }
  }
  leave_stage();
  deliver();
  is_running_ = false;
  then_ = {};
}

void ShardGradients::abandon() {
  if (under_way_) work_.wait();
  end_move();
  under_way_.reset();
  work_ = {};
  section_ = at_home_ = {};
  for (Unit& unit : units_) {
    unit.message = unit.sum = {};
    unit.has_grad = unit.had_grad = {};
  }
  for (const NamedTensor& parameter : parameters_) clear_grad(parameter.tensor);
  is_running_ = false;
  then_ = {};
}

}  // namespace refrain::detail
