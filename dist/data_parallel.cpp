#include <refrain/dist/data_parallel.h>

#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>

#include <algorithm>
#include <numeric>

namespace refrain {

using detail::Bucket;
using detail::BucketItem;
using detail::BucketPart;
using detail::flat_part;

namespace {

// Allocations of communication belong to no module of the model.
struct CommunicationScope {
  KindScope kind{MemoryKind::communication};
  ModuleScope root{ModulePath::root()};
  ModuleScope module{"buckets"};
};

// What was compressed, as f32 gradients.
Tensor widened(const Tensor& flat) {
  const CommunicationScope scope;
  const KindScope kind(MemoryKind::gradient);
  const Tensor wide = empty(flat.shape(), DType::f32, flat.device());
  launch(Convert{.x = flat, .out = wide});
  return wide;
}

}  // namespace

void broadcast_values(ProcessGroup& group, std::span<const NamedTensor> tensors) {
  for (const NamedTensor& entry : tensors) {
    const Tensor here = to_device(entry.tensor.without_autograd(), group.device());
    group.broadcast(here, 0).wait();
    if (!(entry.tensor.device() == group.device())) copy_values(entry.tensor.without_autograd(), here);
  }
}

DataParallel::DataParallel(ProcessGroup& group, std::span<const NamedTensor> state, std::vector<Tensor> parameters,
                           const DataParallelOptions& options)
    : group_(group), options_(options), parameters_(std::move(parameters)) {
  check(options_.op != ReduceOp::max, "data parallel: gradients are reduced to a sum or a mean");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    check(parameters_[i].requires_grad(), "data parallel: parameter ", i, " wants no gradient");
    index_of_.emplace(parameters_[i].autograd_slot().get(), std::int64_t(i));
  }
  check(index_of_.size() == parameters_.size(), "data parallel: a parameter comes twice");
  const DType narrow = options_.compression;
  check(narrow == DType::f32 || is_16_bit(narrow), "data parallel: gradients are compressed to f16 or bf16, got ", narrow);
  check(narrow == DType::f32 || std::ranges::any_of(parameters_, [](const Tensor& p) { return p.dtype() == DType::f32; }),
        "data parallel: compression to ", narrow, " is for f32 gradients, and there is none");
  broadcast_values(group_, state);
  // Backward comes to the last parameters first, as a rule.
  std::vector<std::int64_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::int64_t{0});
  arrange(order);
}

void DataParallel::arrange(std::span<const std::int64_t> order) {
  std::vector<BucketItem> items;
  for (const Tensor& parameter : parameters_) items.push_back({parameter.numel(), travels_as(parameter.dtype())});
  buckets_ = fill_buckets(items, order, options_.bucket_bytes, detail::Cut::whole);
  places_.resize(parameters_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t p = 0; p < buckets_[b].parts.size(); ++p) places_[std::size_t(buckets_[b].parts[p].index)] = {b, p};
  }
}

// The order of rank 0 in the first update: gradients in the order they were final, then those that never came.
void DataParallel::agree_on_order() {
  std::vector<std::int64_t> order = std::move(ready_);
  std::vector<bool> is_in(parameters_.size());
  for (const std::int64_t index : order) is_in[std::size_t(index)] = true;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (!is_in[i]) order.push_back(std::int64_t(i));
  }
  const CommunicationScope scope;
  const Tensor agreed = empty({std::int64_t(order.size())}, DType::i64, group_.device());
  if (agreed.has_bytes()) set_bytes(agreed, std::as_bytes(std::span(order)));
  group_.broadcast(agreed, 0).wait();
  arrange(agreed.has_bytes() ? agreed.to_vector<std::int64_t>() : order);
}

BackwardOptions DataParallel::options(BackwardOptions then) {
  check(!is_running_, "data parallel: options() of one update before finish() of the last");
  if (num_updates_ == 1) agree_on_order();
  ready_.clear();
  is_running_ = true;
  has_backward_ = false;
  then_ = std::move(then);
  filling_.assign(buckets_.size(), {});
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    filling_[b].has_grad.assign(buckets_[b].parts.size(), false);
    filling_[b].num_missing = std::int64_t(buckets_[b].parts.size());
  }
  is_taken_.assign(parameters_.size(), false);
  num_started_ = 0;

  BackwardOptions options;
  options.leaves = parameters_;
  options.on_final = [this](const Tensor& leaf, bool has_grad) {
    has_backward_ = true;
    take(index_of_.at(leaf.autograd_slot().get()), has_grad);
    start_ready();
  };
  return options;
}

// Parts, and one element for each that tells whether there is a gradient.
Tensor DataParallel::allocate(const Bucket& bucket) const {
  const CommunicationScope scope;
  const Tensor flat = empty({bucket.numel + std::int64_t(bucket.parts.size())}, bucket.dtype, group_.device());
  // What lies between parts is sent as well.
  for (std::size_t p = 0; p + 1 < bucket.parts.size(); ++p) {
    const std::int64_t end = bucket.parts[p].offset + bucket.parts[p].numel(), gap = bucket.parts[p + 1].offset - end;
    if (gap > 0) fill_values(flat_part(flat, end, gap), 0);
  }
  return flat;
}

void DataParallel::take(std::int64_t index, bool has_grad) {
  const Place place = places_[std::size_t(index)];
  Filling& filling = filling_[place.bucket];
  is_taken_[std::size_t(index)] = true;
  --filling.num_missing;
  if (!has_grad) return;
  const Bucket& bucket = buckets_[place.bucket];
  const BucketPart& part = bucket.parts[place.part];
  const Tensor& parameter = parameters_[std::size_t(index)];
  if (!filling.flat.defined()) filling.flat = allocate(bucket);
  const Tensor grad = grad_of(parameter);
  clear_grad(parameter);
  const Tensor in_bucket = flat_part(filling.flat, part.offset, part.numel());
  const Tensor values = flat_part(contiguous_values(grad), 0, part.numel());
  if (in_bucket.dtype() == values.dtype())
    copy_values(in_bucket, values);
  else
    launch(Convert{.x = values, .out = in_bucket});
  filling.has_grad[place.part] = true;
  ready_.push_back(index);
}

void DataParallel::start_ready() {
  while (num_started_ < buckets_.size() && filling_[num_started_].num_missing == 0) start(num_started_);
}

void DataParallel::start(std::size_t index) {
  if (under_way_.is_full()) deliver();
  const Bucket& bucket = buckets_[index];
  Filling& filling = filling_[index];
  if (!filling.flat.defined()) filling.flat = allocate(bucket);
  fill_values(flat_part(filling.flat, bucket.numel, std::int64_t(bucket.parts.size())), 1);
  for (std::size_t p = 0; p < bucket.parts.size(); ++p) {
    if (filling.has_grad[p]) continue;
    fill_values(flat_part(filling.flat, bucket.parts[p].offset, bucket.parts[p].numel()), 0);
    fill_values(flat_part(filling.flat, bucket.numel + std::int64_t(p), 1), 0);
  }
  const CommunicationScope scope;
  under_way_.add(group_.all_reduce(filling.flat, options_.op), index);
  ++num_started_;
}

// The oldest reduction under way has ended: its gradients are everybody's.
void DataParallel::deliver() {
  const std::size_t index = under_way_.end_oldest();
  const Bucket& bucket = buckets_[index];
  Filling filling = std::move(filling_[index]);
  const bool has_all = std::find(filling.has_grad.begin(), filling.has_grad.end(), false) == filling.has_grad.end();
  if (!has_all) {
    const Tensor marks = flat_part(filling.flat, bucket.numel, std::int64_t(bucket.parts.size()));
    const std::vector<double> values = marks.has_bytes() ? marks.to_vector<double>() : std::vector<double>();
    for (std::size_t p = 0; p < bucket.parts.size(); ++p) {
      // Without values, what a rank that goes backward does not use is taken to be used by none.
      filling.has_grad[p] = values.empty() ? filling.has_grad[p] || !has_backward_ : values[p] != 0;
    }
  }
  set_grads(bucket, filling);
  const std::vector<bool> has_grad = filling.has_grad;
  filling = {};
  if (!then_.on_final) return;
  for (std::size_t p = 0; p < bucket.parts.size(); ++p)
    then_.on_final(parameters_[std::size_t(bucket.parts[p].index)], has_grad[p]);
}

void DataParallel::set_grads(const Bucket& bucket, const Filling& filling) const {
  const auto is_compressed = [&](const BucketPart& part) {
    return parameters_[std::size_t(part.index)].dtype() != bucket.dtype;
  };
  const bool has_compressed = std::ranges::any_of(bucket.parts, is_compressed);
  const Tensor wide = has_compressed ? widened(flat_part(filling.flat, 0, bucket.numel)) : Tensor();
  if (!std::ranges::all_of(bucket.parts, is_compressed)) filling.flat.storage()->set_kind(MemoryKind::gradient);
  for (std::size_t p = 0; p < bucket.parts.size(); ++p) {
    const BucketPart& part = bucket.parts[p];
    const Tensor& parameter = parameters_[std::size_t(part.index)];
    const Tensor& flat = is_compressed(part) ? wide : filling.flat;
    if (filling.has_grad[p]) set_grad(parameter, view::reshape(flat_part(flat, part.offset, part.numel()), parameter.shape()));
  }
}

void DataParallel::finish() {
  if (!is_running_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_taken_[i]) take(std::int64_t(i), grad_of(parameters_[i]).defined());
    start_ready();
  }
  while (!under_way_.is_empty()) deliver();
  is_running_ = false;
  then_ = {};
  ++num_updates_;
}

void DataParallel::abandon() {
  while (!under_way_.is_empty()) under_way_.end_oldest();
  filling_.clear();
  is_running_ = false;
  then_ = {};
  ++num_updates_;
}

}  // namespace refrain
