#include <refrain/dist/sharded.h>

#include <refrain/core/view.h>
#include <refrain/dist/buckets.h>
#include <refrain/dist/data_parallel.h>

#include <cmath>
#include <utility>

namespace refrain {

using detail::flat_part;
using detail::Piece;

Sharded::Sharded(ProcessGroup& group, const StageParameters& stages, const ShardedOptions& options) : group_(group), options_(options) {
  check(options_.op != ReduceOp::max, "sharded: gradients are reduced to a sum or a mean");
  const bool is_full = options_.level == ShardLevel::full;
  check(is_full || !options_.is_offloaded, "sharded: parameters in host memory need level full");
  const detail::ShardUnits units = detail::units_of(stages);
  const Device& device = group_.device();
  if (is_full) values_ = std::make_unique<detail::ShardValues>(group_, units, options_.is_offloaded ? device.host() : device, options_.newborn);
  else broadcast_values(group_, units.parameters);
  std::vector<Tensor> pieces;
  for (std::size_t i = 0; i < units.parameters.size(); ++i) {
    const auto& [name, whole] = units.parameters[i];
    const Piece piece = detail::piece_of(whole.numel(), group_.rank(), group_.world_size());
    const Tensor own = is_full ? values_->piece(i) : flat_part(whole, piece.begin, piece.numel());
    if (whole.requires_grad()) set_requires_grad(own);
    index_of_.emplace(name, shards_.size());
    shards_.push_back({name, own, whole.shape(), piece.begin});
    if (!is_full) wholes_.push_back(whole);
    pieces.push_back(own);
  }
  gradients_ = std::make_unique<detail::ShardGradients>(group_, units, std::move(pieces), options_.op, options_.across);
}

Sharded::~Sharded() = default;

const Sharded::Shard* Sharded::find(std::string_view name) const {
  const auto found = index_of_.find(std::string(name));
  return found != index_of_.end() ? &shards_[found->second] : nullptr;
}

std::vector<ParameterGroup> Sharded::pieces_of(std::vector<ParameterGroup> groups) const {
  for (ParameterGroup& group : groups) {
    check(group.names.size() == group.parameters.size(), "sharded: a group of ", group.parameters.size(), " parameters has ", group.names.size(),
          " names");
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Shard* shard = find(group.names[i]);
      check(shard != nullptr, "sharded: there is no parameter '", group.names[i], "'");
      group.parameters[i] = shard->piece;
      group.first_elements.push_back(shard->first);
    }
  }
  return groups;
}

Sharded::Pass::Pass(Sharded& sharded, std::string_view key) : sharded_(sharded), scope_(&sharded) {
  sharded_.stage_.reset();
  if (sharded_.values_) sharded_.values_->begin_pass(key);
}

Sharded::Pass::~Pass() {
  try {
    if (sharded_.values_) sharded_.values_->end_pass();
  } catch (const std::exception&) {
    // Of a group that is lost; the next call says so as well.
  }
}

void Sharded::enter(std::uint32_t stage) {
  if (stage_ == stage) return;
  stage_ = stage;
  gradients_->leave_stage();
  if (values_) values_->enter(stage);
}

void Sharded::require(std::uint32_t stage) {
  if (values_) values_->require(stage);
}

void Sharded::settle() { gradients_->settle(); }

bool Sharded::knows(std::string_view key) const { return !values_ || values_->knows(key); }

BackwardOptions Sharded::options(BackwardOptions then, bool is_last) {
  if (!is_last && accumulates_whole()) {
    then.is_last = false;
    return then;
  }
  return gradients_->options(std::move(then), is_last);
}

void Sharded::finish() { gradients_->finish(); }

void Sharded::abandon() { gradients_->abandon(); }

GradNorm Sharded::grad_norm() {
  std::vector<Tensor> pieces;
  for (const Shard& shard : shards_) pieces.push_back(shard.piece);
  return norm_of_all(refrain::grad_norm(pieces));
}

GradNorm Sharded::norm_of_all(GradNorm norm) {
  if (group_.world_size() == 1) return norm;
  // Whether and where a rank has found one that is not finite travels beside its square.
  const KindScope kind(MemoryKind::communication);
  const Tensor numbers = zeros({group_.world_size(), 2}, DType::f64, group_.device());
  if (numbers.has_bytes()) {
    std::vector<double> own(std::size_t(2 * group_.world_size()), 0);
    own[std::size_t(2 * group_.rank())] = norm.norm * norm.norm;
    own[std::size_t(2 * group_.rank() + 1)] = double(norm.first_non_finite + 1);
    set_bytes(numbers, std::as_bytes(std::span(own)));
  }
  group_.all_reduce(numbers, ReduceOp::sum).wait();
  if (!numbers.has_bytes()) return norm;
  const std::vector<double> all = numbers.to_vector<double>();
  double square = 0;
  norm.first_non_finite = -1;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    square += all[i];
    const std::int64_t first = std::int64_t(all[i + 1]) - 1;
    if (first >= 0 && (norm.is_finite() || first < norm.first_non_finite)) norm.first_non_finite = first;
  }
  norm.norm = std::sqrt(square);
  return norm;
}

void Sharded::end_step() {
  for (std::size_t i = 0; i < wholes_.size(); ++i) {
    const std::vector<std::int64_t> counts = detail::piece_counts(wholes_[i].numel(), group_.world_size());
    if (!wholes_[i].requires_grad()) continue;
    group_.all_gather(shards_[i].piece.without_autograd(), flat_part(wholes_[i], 0, wholes_[i].numel()), counts).wait();
    wholes_[i].storage()->bump_version();
  }
}

Tensor Sharded::gathered(const Shard& shard, const Tensor& piece) {
  if (group_.world_size() == 1) return view::reshape(piece.without_autograd(), shard.whole);
  const KindScope kind(MemoryKind::communication);
  const Tensor whole = empty(shard.whole, piece.dtype(), group_.device());
  const Tensor own = flat_part(whole, shard.first, piece.numel());
  copy_bytes(own, flat_part(piece, 0, piece.numel()));
  group_.all_gather(own, flat_part(whole, 0, whole.numel()), detail::piece_counts(whole.numel(), group_.world_size())).wait();
  return whole;
}

void Sharded::set_across(ProcessGroup* across) { gradients_->set_across(across); }

}  // namespace refrain
