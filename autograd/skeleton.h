// What a checkpoint region's first run leaves behind: its ops, their shapes and which value each reads. No bytes.
// From it follows, before anything is replayed, what a gradient would reach and what replay has to compute.
#pragma once

#include <refrain/autograd/random.h>
#include <refrain/autograd/record.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace refrain {

// Names a value seen by an op of a region: a result of an earlier op, or a value from outside.
struct ValueRef {
  enum class Kind : std::uint8_t { none, inner, outer };
  Kind kind = Kind::none;
  int index = 0;   // inner: the op; outer: the capture
  int output = 0;  // inner: which of its results
};

struct Skeleton;

struct SkeletonOp {
  struct Result {
    Shape shape;
    DType dtype;
    Device device;
    bool wants_grad = false;
    std::uint64_t hash = 0;  // of its bits, in certificate mode
  };

  OpInfo info;
  const ModulePath* module = nullptr;
  Needs needs;
  std::vector<ValueRef> inputs;
  std::vector<Result> results;      // outputs first, then what else op_output() gave
  int num_outputs = 0;
  std::vector<int> result_of_call;  // op_output() call -> result
  std::vector<ValueRef> saved;      // what its backward reads; recipes already followed to their sources
  bool is_read = false;             // its values were read outside any op: replay must compute them
  std::shared_ptr<const Skeleton> region;  // of a nested region
};

// A value from outside the region. A nested region's captures are the inputs of its op in the region around it.
struct Capture {
  std::shared_ptr<ValueSlot> slot;  // null for constants
  bool wants_grad = false;
  bool is_argument = false;         // handed in by the caller, hence kept by the region
};

// A tensor the region returned: one of its distinct outputs, one of its tensor arguments, or (both -1) another value
// from outside.
struct ReturnedValue {
  int output = -1;
  int argument = -1;
};

// Position of a generator used inside the region, before and after.
struct GeneratorUse {
  Generator generator;
  std::uint64_t begin = 0, end = 0;
};

struct Skeleton {
  const ModulePath* module = nullptr;
  std::vector<SkeletonOp> ops;
  std::vector<Capture> captures;
  std::vector<ValueRef> outputs;      // of the region, distinct, all inner
  std::vector<ReturnedValue> returned;
  std::shared_ptr<const void> form;   // what the region returned, without its tensors
  std::vector<int> argument_captures; // tensor argument -> capture; -1 when no op reads it
  RandomState random_begin, random_end;
  std::vector<GeneratorUse> generators;
  std::optional<DType> autocast;      // precision of the first run, which a replay repeats
  bool is_certified = false;

  // Which results of which ops replay must have, given the outputs whose gradients arrived.
  struct Demand {
    std::vector<std::vector<bool>> results;  // [op][result]: somebody reads it
    std::vector<bool> computes;              // [op]: its arithmetic has to run
  };
  // `kept[op][result]` marks values that are still there; empty means none.
  Demand demand(const std::vector<bool>& reached_outputs, const std::vector<std::vector<Tensor>>& kept) const;

  // Calls deliver(capture) once for every gradient contribution that values outside will get.
  void for_each_contribution(const std::vector<bool>& reached_outputs, const std::function<void(int capture)>& deliver) const;

  bool wants_grad() const;
  const SkeletonOp::Result& result_of(const ValueRef& inner) const { return ops[std::size_t(inner.index)].results[std::size_t(inner.output)]; }
};

}  // namespace refrain
