#include <refrain/autograd/session.h>

#include <algorithm>
#include <cstring>

namespace refrain {

bool keeps(const KeepList& keep, std::string_view op) {
  const auto lists = [&](std::string_view name) { return std::find(keep.begin(), keep.end(), name) != keep.end(); };
  if (lists(op)) return true;
  if (op == "linear" || op == "conv2d" || op == "patch_embedding") return lists("matmul");
  return op == "attention_packed" && lists("attention");
}

namespace detail {

AutogradState& autograd_state() {
  thread_local AutogradState state;
  return state;
}

SessionScope::SessionScope(FirstRun* first_run, Replay* replay)
    : old_first_run_(autograd_state().first_run), old_replay_(autograd_state().replay) {
  autograd_state().first_run = first_run;
  autograd_state().replay = replay;
}

SessionScope::~SessionScope() {
  autograd_state().first_run = old_first_run_;
  autograd_state().replay = old_replay_;
}

namespace {

std::atomic<std::uint64_t> session_counter{1};

// What makes two tensors the same value: their slot, or their bytes when autograd does not know them.
const void* identity_of(const Tensor& t) {
  if (t.autograd_slot()) return t.autograd_slot().get();
  return t.storage().get();
}

}  // namespace

FirstRun::FirstRun(FirstRun* outer, std::span<const Tensor> arguments, const KeepList& keep, bool is_certified)
    : id_(session_counter.fetch_add(1)), outer_(outer), keep_(keep), first_birth_(Storage::next_birth()) {
  skeleton_->module = thread_context().module;
  skeleton_->random_begin = random_state();
  skeleton_->is_certified = is_certified;
  skeleton_->autocast = autograd_state().autocast;
  for (const Tensor& argument : arguments) {
    int index = -1;
    if (argument.defined()) {
      const auto [found, is_new] = capture_of_.emplace(identity_of(argument), int(skeleton_->captures.size()));
      if (is_new) {
        skeleton_->captures.push_back({slot_of(argument), argument.requires_grad(), true});
        captured_.push_back(argument);
      }
      index = found->second;
    }
    skeleton_->argument_captures.push_back(index);
  }
}

ValueRef FirstRun::ref_of(const Tensor& t) {
  if (const std::shared_ptr<ValueSlot> slot = slot_of(t); slot != nullptr && slot->mark.session == id_) {
    return {ValueRef::Kind::inner, slot->mark.op, slot->mark.output};
  }
  if (const auto found = capture_of_.find(identity_of(t)); found != capture_of_.end()) return {ValueRef::Kind::outer, found->second, 0};
  // A constant made inside the region is made again by its replay.
  if (!t.autograd_slot() && (t.storage() == nullptr || t.storage()->birth() >= first_birth_)) return {};
  const int index = int(skeleton_->captures.size());
  capture_of_.emplace(identity_of(t), index);
  skeleton_->captures.push_back({slot_of(t), t.requires_grad(), false});
  captured_.push_back(t);
  return {ValueRef::Kind::outer, index, 0};
}

void FirstRun::add_saved(SkeletonOp& op, const ValueRef& ref) const {
  if (ref.kind != ValueRef::Kind::inner) return;
  const std::size_t index = std::size_t(ref.index);
  if (index < skeleton_->ops.size() && skeleton_->ops[index].needs.any() && ref.output == 0) {
    const SkeletonOp& producer = skeleton_->ops[index];
    if (producer.info.rebuild == Rebuild::from_saved) {
      for (const ValueRef& source : producer.saved) op.saved.push_back(source);
      return;
    }
    if (producer.info.rebuild == Rebuild::from_input && producer.inputs[0].kind == ValueRef::Kind::inner) {
      // Only when the input is itself a recipe: else the output is what is kept.
      SkeletonOp probe;
      add_saved(probe, producer.inputs[0]);
      const bool is_itself = probe.saved.size() == 1 && probe.saved[0].kind == ValueRef::Kind::inner &&
                             probe.saved[0].index == producer.inputs[0].index && probe.saved[0].output == producer.inputs[0].output;
      if (!is_itself) {
        op.saved.insert(op.saved.end(), probe.saved.begin(), probe.saved.end());
        return;
      }
    }
  }
  op.saved.push_back(ref);
}

void FirstRun::add_op(SkeletonOp op, std::vector<Tensor> results) {
  if (skeleton_->is_certified) {
    for (std::size_t i = 0; i < results.size(); ++i) op.results[i].hash = hash_values(results[i]);
  }
  const bool keep = outer_ == nullptr && op.region == nullptr && keeps(keep_, op.info.name);
  skeleton_->ops.push_back(std::move(op));
  if (!keep_.empty() && outer_ == nullptr) {
    for (Tensor& result : results) result = keep ? result.without_autograd() : Tensor();
    kept_.push_back(std::move(results));
  }
}

void FirstRun::note_generator(const Generator& generator) {
  if (outer_ != nullptr) outer_->note_generator(generator);
  for (const GeneratorUse& use : skeleton_->generators) {
    if (use.generator == generator) return;
  }
  skeleton_->generators.push_back({generator, generator.position(), 0});
}

void FirstRun::finish(std::span<const Tensor> returned) {
  std::vector<ValueRef>& outputs = skeleton_->outputs;
  for (const Tensor& t : returned) {
    ReturnedValue value;
    const ValueRef ref = t.defined() ? ref_of(t) : ValueRef{};
    if (ref.kind == ValueRef::Kind::inner) {
      const auto same = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const ValueRef& other) { return other.index == ref.index && other.output == ref.output; });
      value.output = int(same - outputs.begin());
      if (same == outputs.end()) outputs.push_back(ref);
    } else if (ref.kind == ValueRef::Kind::outer) {
      const std::vector<int>& arguments = skeleton_->argument_captures;
      const auto argument = std::find(arguments.begin(), arguments.end(), ref.index);
      if (argument != arguments.end()) value.argument = int(argument - arguments.begin());
    }
    skeleton_->returned.push_back(value);
  }
  skeleton_->random_end = random_state();
  for (GeneratorUse& use : skeleton_->generators) use.end = use.generator.position();
  if (kept_.empty()) return;
  // Keep only what backward or a replayed op will read.
  const Skeleton::Demand demand = skeleton_->demand(std::vector<bool>(outputs.size(), true), kept_);
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    for (std::size_t j = 0; j < kept_[i].size(); ++j) {
      if (!demand.results[i][j]) kept_[i][j] = Tensor();
    }
  }
}

namespace {

std::string shapes_of(std::span<const Tensor> tensors) {
  std::string text;
  for (const Tensor& t : tensors) text += concat(text.empty() ? "" : ", ", t.shape());
  return text;
}

}  // namespace

Replay::Replay(const Skeleton& skeleton, const std::vector<bool>& reached_outputs, const std::vector<std::vector<Tensor>>& kept)
    : skeleton_(skeleton), kept_(kept), demand_(skeleton.demand(reached_outputs, kept)) {}

const SkeletonOp& Replay::begin(const OpInfo& info, std::span<const Tensor* const> inputs) {
  ++position_;
  const ModulePath* module = thread_context().module;
  check<ReplayMismatch>(position_ < int(skeleton_.ops.size()), "replay of the region in module '", skeleton_.module->text, "' ran ", info.name,
                        " in module '", module->text, "' after the last op of its first run");
  const SkeletonOp& op = skeleton_.ops[std::size_t(position_)];
  check<ReplayMismatch>(op.info.name == info.name && op.module == module && (op.region != nullptr || op.inputs.size() == inputs.size()),
                        "replay of the region in module '", skeleton_.module->text, "' ran ", info.name, " in module '", module->text,
                        "' where its first run ran ", op.info.name, " in module '", op.module->text, "' (op ", position_, ")");
  return op;
}

Tensor Replay::kept(int result) const {
  return kept_.empty() ? Tensor() : kept_[std::size_t(position_)][std::size_t(result)];
}

void Replay::end(std::span<const Tensor> outputs, std::span<const Tensor> results) {
  const SkeletonOp& op = skeleton_.ops[std::size_t(position_)];
  bool is_same_shape = outputs.size() == std::size_t(op.num_outputs);
  for (std::size_t i = 0; is_same_shape && i < outputs.size(); ++i) {
    is_same_shape = outputs[i].shape() == op.results[i].shape && outputs[i].dtype() == op.results[i].dtype;
  }
  if (!is_same_shape) {
    std::string expected;
    for (int i = 0; i < op.num_outputs; ++i) expected += concat(i ? ", " : "", op.results[std::size_t(i)].shape);
    fail<ReplayMismatch>("replay of ", op.info.name, " in module '", op.module->text, "' gave ", shapes_of(outputs), ", its first run ",
                         expected);
  }
  if (!skeleton_.is_certified) return;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].has_bytes() || !needs_result(int(i))) continue;
    check<ReplayMismatch>(hash_values(results[i]) == op.results[i].hash, "replay of ", op.info.name, " in module '", op.module->text,
                          "' gave other bits than its first run (result ", i, " of shape ", results[i].shape(), ")");
  }
}

void Replay::finish() const {
  check<ReplayMismatch>(position_ + 1 == int(skeleton_.ops.size()), "replay of the region in module '", skeleton_.module->text, "' ended after ",
                        position_ + 1, " ops, its first run had ", skeleton_.ops.size());
}

std::uint64_t hash_values(const Tensor& t) {
  if (!t.defined() || !t.has_bytes()) return 0;
  const Tensor values = contiguous_values(t.without_autograd());
  constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15u;
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::vector<std::byte> buffer;
  const std::byte* bytes = host_bytes(values, buffer).data();
  const std::size_t size = std::size_t(values.bytes());
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, bytes + at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * kPrime, lanes[i] ^= lanes[i] >> 29;
  }
  for (; at < size; ++at) lanes[0] = (lanes[0] ^ std::uint64_t(bytes[at])) * kPrime;
  std::uint64_t hash = size;
  for (std::uint64_t lane : lanes) hash = (hash ^ lane) * kPrime, hash ^= hash >> 31;
  return hash;
}

std::vector<int> results_of_calls(std::span<const Tensor> outputs, std::span<const Tensor> calls) {
  std::vector<int> result_of_call;
  int next = int(outputs.size());
  for (const Tensor& call : calls) {
    int result = -1;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].storage() == call.storage()) result = int(i);  // the output, or a view of it
    }
    result_of_call.push_back(result >= 0 ? result : next++);
  }
  return result_of_call;
}

}  // namespace detail

}  // namespace refrain
