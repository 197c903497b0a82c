// Models as chains of stages (embed, blocks…, head). Checkpoint policies are data about a chain, so they need not know
// which model it is.
#pragma once

#include <refrain/autograd/checkpoint.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  selective,  // a region per block that keeps the results of the ops named in `keep`
  custom      // the regions in `parts`
};

// A contiguous part of a chain. Not a region: its stages, or inner parts, run on the tape. A region: what it computes is
// dropped and replayed in backward.
struct ChainPart {
  std::size_t begin = 0, end = 0;      // stages
  bool is_region = false;
  std::vector<std::string> keep = {};  // of a region without inner parts: ops whose results it keeps; see CheckpointOptions
  std::vector<ChainPart> parts = {};   // inner parts, which cover begin … end; empty: the stages themselves
  friend bool operator==(const ChainPart&, const ChainPart&) = default;
};

struct CheckpointPolicy {
  CheckpointKind kind = CheckpointKind::none;
  int levels = 2;                      // of nested; 1 is the same as block
  std::vector<std::string> keep = {};  // of selective; see CheckpointOptions
  bool certify = false;
  bool offload = false;                // what regions begin with waits in host memory
  std::vector<ChainPart> parts = {};   // of custom: they cover the chain

  // "none", "block", "nested" or "selective". Throws InvalidArgument for other words.
  static CheckpointKind parse_kind(std::string_view word);
};
std::string_view name_of(CheckpointKind kind);

// What a policy makes of a chain: parts that cover it in order. Stages that are no blocks are in no region. Throws
// InvalidArgument for nested policies with fewer than 1 level, and for custom parts that leave stages out, cover them
// twice, put a stage that is no block into a region, or name ops to keep where nothing could keep them.
std::vector<ChainPart> partition(const CheckpointPolicy& policy, std::span<const std::shared_ptr<Stage>> stages);

// A chain and how it is run. Regions hold it, so it outlives the call.
struct ChainRun {
  std::vector<std::shared_ptr<Stage>> stages;
  std::vector<ChainPart> parts;
  SideInputs side;
  bool certify = false, offload = false;
};

// Runs one part of run->parts, at any depth of the tree: as a region when it is one. run_inside() runs what is in it, its
// stages or inner parts, and makes no region of the part itself.
Tensor run_part(const std::shared_ptr<const ChainRun>& run, const ChainPart& part, Tensor hidden);
Tensor run_inside(const std::shared_ptr<const ChainRun>& run, const ChainPart& part, Tensor hidden);

// Runs the stages one after the other under the policy. Stage i draws its random numbers as stage i (autograd/random.h)
// and its work is booked to its name. Throws InvalidArgument as partition() does.
Tensor run_chain(const std::vector<std::shared_ptr<Stage>>& stages, Tensor hidden, const SideInputs& side, const CheckpointPolicy& policy);

}  // namespace refrain
