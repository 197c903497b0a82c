// Models as chains of stages (embed, blocks…, head). Checkpoint policies are data about a chain, so they need not know
// which model it is.
#pragma once

#include <refrain/autograd/checkpoint.h>

#include <memory>
#include <string>
#include <cstdint>
#include <string_view>
#include <vector>

namespace refrain {

// What every stage may read besides the hidden state. Read-only, no gradient; undefined where a model has none.
struct SideInputs {
  Tensor key_mask = {};   // [B, T] bool or u8, nonzero: the position may be attended to
  Tensor positions = {};  // [T] or [B, T] i64
  Tensor lengths = {};    // [B] i64
};

class Stage {
 public:
  virtual ~Stage() = default;
  // The next hidden state. Must depend on nothing but its arguments, its parameters and random calls.
  virtual Tensor forward(const Tensor& hidden, const SideInputs& side) = 0;
  // Module path of the stage inside the model, such as `blocks.3`.
  virtual std::string_view name() const = 0;
  // Whether policies may put it into a checkpoint region: true for the repeated blocks.
  virtual bool is_block() const { return true; }
};

enum class CheckpointKind : std::uint8_t {
  none,       // keep what backward reads
  block,      // a region per block
  nested,     // regions in regions: `levels` of them, split evenly
  selective   // a region per block that keeps the results of the ops named in `keep`
};

struct CheckpointPolicy {
  CheckpointKind kind = CheckpointKind::none;
  int levels = 2;                      // of nested; 1 is the same as block
  std::vector<std::string> keep = {};  // of selective; see CheckpointOptions
  bool certify = false;

  // "none", "block", "nested" or "selective". Throws InvalidArgument for other words.
  static CheckpointKind parse_kind(std::string_view word);
};
std::string_view name_of(CheckpointKind kind);

// Runs the stages one after the other under the policy. Stage i draws its random numbers as stage i (autograd/random.h)
// and its work is booked to its name. Throws InvalidArgument for nested policies with fewer than 1 level.
Tensor run_chain(const std::vector<std::shared_ptr<Stage>>& stages, Tensor hidden, const SideInputs& side, const CheckpointPolicy& policy);

}  // namespace refrain
