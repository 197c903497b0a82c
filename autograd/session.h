// What the calling thread's ops run inside of: nothing, a checkpoint region's first run, or its replay. Internal.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/autograd/skeleton.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace refrain {

class FiniteWatch;
class StageKeeper;

using KeepList = std::vector<std::string>;
// Whether a keep-list names this op. `matmul` stands for every op that is a matrix product (linear, convolutions),
// `attention` for both forms of attention; other names are op names.
bool keeps(const KeepList& keep, std::string_view op);

namespace detail {

class FirstRun;
class Replay;

struct AutogradState {
  bool is_grad_enabled = true;
  FirstRun* first_run = nullptr;   // at most one of first_run and replay is set: the innermost
  Replay* replay = nullptr;
  ApplyFrame* frame = nullptr;
  bool is_in_backward = false;
  std::optional<DType> autocast;   // the 16-bit dtype of a mixed precision mode
  DType parameter_dtype = DType::f32;  // of modules that are built now
  FiniteWatch* watch = nullptr;    // the innermost
  StageKeeper* keeper = nullptr;   // likewise
  std::shared_ptr<std::atomic<std::int64_t>> live_records = std::make_shared<std::atomic<std::int64_t>>(0);
};
AutogradState& autograd_state();

// Makes a session the innermost for the scope's life; both null means: plain.
class SessionScope {
 public:
  SessionScope(FirstRun* first_run, Replay* replay);
  ~SessionScope();
  SessionScope(const SessionScope&) = delete;
  SessionScope& operator=(const SessionScope&) = delete;

 private:
  FirstRun* old_first_run_;
  Replay* old_replay_;
};

class GradModeScope {
 public:
  explicit GradModeScope(bool is_enabled) : old_(autograd_state().is_grad_enabled) { autograd_state().is_grad_enabled = is_enabled; }
  ~GradModeScope() { autograd_state().is_grad_enabled = old_; }
  GradModeScope(const GradModeScope&) = delete;
  GradModeScope& operator=(const GradModeScope&) = delete;

 private:
  bool old_;
};

// Sets the dtype that a mixed mode's products run in, none outside mixed modes. Users write PrecisionScope.
class AutocastScope {
 public:
  explicit AutocastScope(std::optional<DType> dtype) : old_(autograd_state().autocast) { autograd_state().autocast = dtype; }
  ~AutocastScope() { autograd_state().autocast = old_; }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::optional<DType> old_;
};

// Watches the ops of a region's first run and writes the skeleton.
class FirstRun {
 public:
  FirstRun(FirstRun* outer, std::span<const Tensor> arguments, const KeepList& keep, bool is_certified);

  std::uint64_t id() const { return id_; }
  FirstRun* outer() const { return outer_; }
  SkeletonMark next_mark(int output) const { return {id_, int(skeleton_->ops.size()), output}; }

  // Which value an op's input is. Values never seen before that come from outside become captures.
  ValueRef ref_of(const Tensor& t);
  // Follows a saved value through the recipes of cheap ops to what they are rebuilt from.
  void add_saved(SkeletonOp& op, const ValueRef& ref) const;
  void add_op(SkeletonOp op, std::vector<Tensor> results);
  void note_read(const SkeletonMark& mark) { skeleton_->ops[std::size_t(mark.op)].is_read = true; }
  void note_generator(const Generator& generator);

  // Closes the run, given what the region returned. Afterwards kept() is final.
  void finish(std::span<const Tensor> returned);
  const std::shared_ptr<Skeleton>& skeleton() const { return skeleton_; }
  // The tensor behind each capture.
  const std::vector<Tensor>& captured() const { return captured_; }
  std::vector<std::vector<Tensor>>& kept() { return kept_; }

 private:
  std::uint64_t id_;
  FirstRun* outer_;
  const KeepList& keep_;
  std::uint64_t first_birth_;
  std::shared_ptr<Skeleton> skeleton_ = std::make_shared<Skeleton>();
  std::unordered_map<const void*, int> capture_of_;
  std::vector<Tensor> captured_;
  std::vector<std::vector<Tensor>> kept_;
};

// Tells each op of a replay what of it is needed, and checks that it is the op of the first run.
class Replay {
 public:
  Replay(const Skeleton& skeleton, const std::vector<bool>& reached_outputs, const std::vector<std::vector<Tensor>>& kept);

  const Skeleton& skeleton() const { return skeleton_; }
  int position() const { return position_; }
  // Starts the next op. Throws ReplayMismatch when it is another one than in the first run.
  const SkeletonOp& begin(const OpInfo& info, std::span<const Tensor* const> inputs);
  bool computes() const { return demand_.computes[std::size_t(position_)]; }
  bool needs_result(int result) const { return demand_.results[std::size_t(position_)][std::size_t(result)]; }
  // A value kept from the first run; undefined when it was not.
  Tensor kept(int result) const;
  // Checks shapes and, in certificate mode, bits of the results the op computed.
  void end(std::span<const Tensor> outputs, std::span<const Tensor> results);
  // Throws ReplayMismatch when the replay stopped short.
  void finish() const;

 private:
  const Skeleton& skeleton_;
  const std::vector<std::vector<Tensor>>& kept_;
  Skeleton::Demand demand_;
  int position_ = -1;
};

// A hash of the values, in row-major order.
std::uint64_t hash_values(const Tensor& t);

// result index of each op_output() call: outputs first, then the rest in order of allocation.
std::vector<int> results_of_calls(std::span<const Tensor> outputs, std::span<const Tensor> calls);

}  // namespace detail

}  // namespace refrain
