#include <refrain/dist/local_sgd.h>

#include <refrain/core/view.h>
#include <refrain/dist/buckets.h>
#include <refrain/dist/data_parallel.h>
#include <refrain/dist/under_way.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/elementwise/elementwise.h>

#include <cmath>
#include <map>
#include <numeric>

namespace refrain {

using detail::Bucket;
using detail::BucketItem;
using detail::BucketPart;
using detail::flat_part;

namespace {

constexpr std::uint64_t kAveraging = 0x61766572616765;  // tells these random numbers from those of updates

struct AveragingScope {
  explicit AveragingScope(MemoryKind memory) : kind(memory) {}
  KindScope kind;
  PhaseScope phase{Phase::update};
  ModuleScope root{ModulePath::root()};
  ModuleScope module{"averaging"};
};

}  // namespace

LocalSgd::LocalSgd(ProcessGroup& group, std::vector<NamedTensor> state, Optimizer& optimizer, const LocalSgdOptions& options)
    : group_(group), optimizer_(optimizer), options_(options) {
  check(options_.steps >= 1, "local_sgd: expected to average every 1 step or more, got ", options_.steps);
  check(options_.bucket_bytes > 0, "local_sgd: bucket_bytes: expected more than 0, got ", options_.bucket_bytes);
  check(std::isfinite(options_.outer_lr) && options_.outer_lr > 0, "local_sgd: expected an outer lr above 0, got ",
        options_.outer_lr);
  check(options_.outer_momentum >= 0 && options_.outer_momentum < 1, "local_sgd: expected an outer momentum of 0 to 1, got ",
        options_.outer_momentum);
  broadcast_values(group_, state);
  optimizer_.reset_masters();

  std::map<std::string, Tensor> masters;
  const OptimizerState optimizer_state = optimizer_.state_dict();
  const auto is_master = [](const std::string& name) { return name.ends_with(".master"); };
  for (const NamedTensor& entry : optimizer_state.tensors) {
    if (is_master(entry.name)) masters.emplace(entry.name.substr(0, entry.name.size() - 7), entry.tensor);
  }
  const bool has_outer = options_.outer_lr != 1 || options_.outer_momentum > 0;
  for (const NamedTensor& entry : state) {
    if (!is_floating(entry.tensor.dtype()) || entry.tensor.numel() == 0) continue;
    const bool is_frozen = entry.tensor.autograd_slot() != nullptr && !entry.tensor.requires_grad();
    if (is_frozen) continue;  // a mean of equal values may round to another
    const Tensor tensor = entry.tensor.without_autograd();
    check(tensor.is_contiguous(), "local_sgd: '", entry.name, "' must be contiguous");
    const bool is_narrow = is_16_bit(tensor.dtype());
    if (const auto master = masters.find(entry.name); master != masters.end())
      items_.push_back({master->second.without_autograd(), tensor, entry.name});
    else
      items_.push_back({tensor, {}, entry.name, is_narrow && options_.rounding == Rounding::stochastic, optimizer_.first_element(entry.name)});
    if (!has_outer || !entry.tensor.requires_grad()) continue;
    check(!is_narrow, "local_sgd: an outer optimizer is for f32 and f64 parameters, '", entry.name, "' is ", tensor.dtype());
    const AveragingScope scope(MemoryKind::optimizer_state);
    outer_.push_back({tensor, clone(tensor),
                      options_.outer_momentum > 0 ? zeros(tensor.shape(), tensor.dtype(), tensor.device()) : Tensor(),
                      entry.name});
  }
  if (options_.state != StatePolicy::average) return;
  for (const NamedTensor& entry : optimizer_state.tensors) {
    if (!is_master(entry.name) && entry.tensor.numel() > 0) items_.push_back({entry.tensor.without_autograd(), {}, entry.name});
  }
}

LocalSgdScope::~LocalSgdScope() noexcept(false) {
  if (std::uncaught_exceptions() == num_exceptions_) finish();
}

bool LocalSgd::step() {
  if (++num_since_ < options_.steps) return false;
  average();
  return true;
}

void LocalSgd::finish() {
  if (num_since_ > 0) average();
}

void LocalSgd::average() {
  reduce_buckets();
  ++num_averagings_;
  num_since_ = 0;
  if (options_.state == StatePolicy::reset) reset_optimizer_state();
  step_outer();
}

void LocalSgd::reduce_buckets() {
  std::vector<BucketItem> sizes;
  for (const Item& item : items_) sizes.push_back({item.tensor.numel(), item.is_wide ? DType::f32 : item.tensor.dtype()});
  std::vector<std::int64_t> order(items_.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const std::vector<Bucket> buckets = detail::fill_buckets(sizes, order, options_.bucket_bytes, detail::Cut::pieces);

  // A piece that travels alone and as it is needs no copy.
  const auto is_in_place = [&](const Bucket& bucket) {
    const Item& item = items_[std::size_t(bucket.parts[0].index)];
    return bucket.parts.size() == 1 && !item.is_wide && item.tensor.device() == group_.device();
  };
  const auto own = [&](const BucketPart& part) {
    return flat_part(items_[std::size_t(part.index)].tensor, part.begin, part.numel());
  };

  struct Sent {
    const Bucket* bucket;
    Tensor flat;
  };
  detail::UnderWay<Sent> under_way;
  const auto end_oldest = [&] {
    const Sent done = under_way.end_oldest();
    for (const BucketPart& part : done.bucket->parts) {
      const Item& item = items_[std::size_t(part.index)];
      const Tensor mean = to_device(flat_part(done.flat, part.offset, part.numel()), item.tensor.device());
      if (item.is_wide) {
        // 0 - 1 · (-1 · mean), stored with the update's rounding.
        fill_values(own(part), 0);
        launch(SgdUpdate{
            .grad = mean,
            .lr = 1,
            .weight_decay = 0,
            .momentum = 0,
            .grad_scale = -1,
            .nesterov = false,
            .out = own(part),
            .momentum_buffer = {},
            .rounding = {Rounding::stochastic, update_key(options_.seed ^ kAveraging, num_averagings_, item.name),
                         item.first_element + part.begin}});
      } else if (!is_in_place(*done.bucket)) {
        copy_values(own(part), mean);
      }
      if (item.parameter.defined()) launch(Convert{.x = own(part), .out = flat_part(item.parameter, part.begin, part.numel())});
      item.tensor.storage()->bump_version();
      if (item.parameter.defined()) item.parameter.storage()->bump_version();
    }
  };
  const AveragingScope scope(MemoryKind::communication);
  for (const Bucket& bucket : buckets) {
    if (under_way.is_full()) end_oldest();
    Tensor flat;
    if (is_in_place(bucket)) {
      flat = own(bucket.parts[0]);
    } else {
      flat = empty({bucket.numel}, bucket.dtype, group_.device());
      std::int64_t end = 0;
      for (const BucketPart& part : bucket.parts) {
        if (part.offset > end) fill_values(flat_part(flat, end, part.offset - end), 0);
        const Tensor place = flat_part(flat, part.offset, part.numel());
        if (items_[std::size_t(part.index)].is_wide)
          launch(Convert{.x = to_device(own(part), group_.device()), .out = place});
        else
          copy_values(place, own(part));
        end = part.offset + part.numel();
      }
    }
    under_way.add(group_.all_reduce(flat, ReduceOp::mean), {&bucket, flat});
  }
  while (!under_way.is_empty()) end_oldest();
}

void LocalSgd::reset_optimizer_state() {
  OptimizerState state = optimizer_.state_dict();
  for (const NamedTensor& entry : state.tensors) {
    if (!entry.name.ends_with(".master")) fill_values(entry.tensor, 0);
  }
  for (auto& [name, value] : state.scalars) {
    if (name.ends_with(".num_steps")) value = 0;
  }
  optimizer_.load_state(state);
}

// parameter = anchor - lr · (Nesterov of anchor - average)
void LocalSgd::step_outer() {
  for (const Outer& outer : outer_) {
    const AveragingScope scope(MemoryKind::temporary);
    const Tensor change = empty_like(outer.parameter);
    launch(Binary{.op = BinaryOp::sub, .a = outer.anchor, .b = outer.parameter, .out = change});
    launch(SgdUpdate{.grad = change,
                     .lr = options_.outer_lr,
                     .weight_decay = 0,
                     .momentum = options_.outer_momentum,
                     .grad_scale = 1,
                     .nesterov = options_.outer_momentum > 0,
                     .out = outer.anchor,
                     .momentum_buffer = outer.momentum});
    outer.anchor.storage()->bump_version();
    copy_values(outer.parameter, outer.anchor);
  }
}

OptimizerState LocalSgd::state_dict() const {
  OptimizerState state;
  state.scalars = {{"num_since", double(num_since_)}, {"num_averagings", double(num_averagings_)}};
  for (const Outer& outer : outer_) {
    state.tensors.push_back({outer.name + ".outer_anchor", outer.anchor});
    if (outer.momentum.defined()) state.tensors.push_back({outer.name + ".outer_momentum", outer.momentum});
  }
  return state;
}

void LocalSgd::load_state(const OptimizerState& state) {
  if (state.scalars.empty()) {
    num_since_ = 0;
    for (const Outer& outer : outer_) {
      copy_values(outer.anchor, outer.parameter);
      if (outer.momentum.defined()) fill_values(outer.momentum, 0);
    }
    return;
  }
  const auto count = [&](const char* name) {
    const auto found = state.scalars.find(name);
    check(found != state.scalars.end() && found->second >= 0 && found->second == std::floor(found->second),
          "local_sgd: state has no count '", name, "'");
    return std::int64_t(found->second);
  };
  const std::int64_t since = count("num_since"), averagings = count("num_averagings");
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : state.tensors) given.emplace(entry.name, entry.tensor);
  const std::vector<NamedTensor> own = state_dict().tensors;
  for (const NamedTensor& entry : own) check(given.contains(entry.name), "local_sgd: state has no '", entry.name, "'");
  for (const NamedTensor& entry : own) {
    const Tensor& tensor = given.at(entry.name);
    if (tensor.storage() != entry.tensor.storage()) copy_values(entry.tensor, tensor);
  }
  num_since_ = since;
  num_averagings_ = averagings;
}

}  // namespace refrain
