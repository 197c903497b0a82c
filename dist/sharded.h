// Parameters, gradients and optimizer state split over ranks (ZeRO, Rajbhandari et al. 2020), and parameters that live in host
// memory: each rank keeps a piece of every parameter, which its optimizer updates, and a stage's parameters are whole only while
// the stage computes.
//
//   Sharded sharded(*group, stage_parameters(model), options);
//   AdamW optimizer(sharded.pieces_of(make_groups(model.named_parameters(), 0.01)));
//   …
//   {
//     const Sharded::Pass pass(sharded, "step");
//     const Tensor loss = …;                       // a stage's parameters are gathered when the stage begins
//     backward(loss, sharded.options());           // and again for its replay and backward; gradients go where their pieces are
//     sharded.finish();
//   }
//   optimizer.step(lr); optimizer.zero_grad();
//   sharded.end_step();
//
// What a pass will need next is known from the last one with the same key, and fetched while the present stage computes.
#pragma once

#include <refrain/autograd/stage_keeper.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/named_tensor.h>
#include <refrain/dist/newborn_pieces.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/shard_gradients.h>
#include <refrain/dist/shard_values.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/optim/parameter_group.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace refrain {

enum class ShardLevel : std::uint8_t {
  full,       // parameters, gradients and optimizer state are split
  gradients,  // parameters are whole on every rank; of gradients each keeps its pieces, from the first micro-batch on
  optimizer,  // only optimizer state is split: gradients are whole until the last micro-batch
};

struct ShardedOptions {
  ShardLevel level = ShardLevel::full;
  // Pieces live in the memory of device().host(), where they are updated, and so do their gradients once they are final. Needs
  // level full; in a world of one a piece is the whole parameter.
  bool is_offloaded = false;
  // Of gradients; see DataParallelOptions.
  ReduceOp op = ReduceOp::mean;
  // Ranks with the same pieces in other worlds like this one, whose gradients are reduced as well; null: none. Must outlive this.
  ProcessGroup* across = nullptr;
  // Where pieces of parameters come from that are evicted already.
  NewbornPieces* newborn = nullptr;
};

// The parameters that each stage reads; a tied one is in several.
using StageParameters = std::vector<std::vector<NamedTensor>>;

class Sharded final : public StageKeeper {
 public:
  // This rank's piece of a parameter.
  struct Shard {
    std::string name;
    Tensor piece;            // [n], n may be 0; a leaf where the parameter is one
    Shape whole;             // of the parameter
    std::int64_t first = 0;  // the piece's first element, in row-major order
  };

  // Rank 0's values on every rank (but for parameters in `newborn`), cut into pieces; with level full the parameters' own bytes are given back until a stage needs
  // them. The group must outlive this. Throws InvalidArgument for options that do not go together.
  Sharded(ProcessGroup& group, const StageParameters& stages, const ShardedOptions& options = {});
  ~Sharded() override;

  const std::vector<Shard>& shards() const { return shards_; }
  const Device& device() const { return group_.device(); }
  // Null where there is none of this name.
  const Shard* find(std::string_view name) const;
  // The same groups with pieces in the place of parameters, for an optimizer.
  std::vector<ParameterGroup> pieces_of(std::vector<ParameterGroup> groups) const;

  // Part of a program that enters stages: brings parameters in and, at its end, takes all away again. Passes with one key enter
  // the same stages in the same order; without a key stages come one after the other, as in an evaluation. All ranks make
  // the same passes.
  class Pass {
   public:
    Pass(Sharded& sharded, std::string_view key);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Sharded& sharded_;
    StageKeeperScope scope_;
  };
  void enter(std::uint32_t stage) override;
  void require(std::uint32_t stage) override;
  void settle() override;
  // Whether passes with this key have been seen: later ones are alike.
  bool knows(std::string_view key) const;

  // For each backward of an update. Of the last one `then` hears of pieces whose gradients are final, as an optimizer of pieces
  // knows them. After each: finish().
  BackwardOptions options(BackwardOptions then = {}, bool is_last = true);
  void finish();
  // Forgets the update, after an exception that every rank meets at the same place.
  void abandon();
  // Of the gradients of all pieces, on every rank: what clipping goes by (clip_factor() of optim/clip_grad.h). All ranks call it.
  GradNorm grad_norm();
  // The same made of each rank's own, however it was measured.
  GradNorm norm_of_all(GradNorm own);
  // After the optimizer's step.
  void end_step();

  // The whole tensor on the device (in a world of one the piece, where it is), made of every rank's `piece`, which belongs to the shard: itself, or optimizer state. All
  // ranks call it.
  Tensor gathered(const Shard& shard, const Tensor& piece);
  // Whether gradients of the parameters themselves are kept between the micro-batches of an update.
  bool accumulates_whole() const { return options_.level == ShardLevel::optimizer; }
  // Whether parameters are on the device in passes alone.
  bool moves_parameters() const { return options_.level == ShardLevel::full; }
  // For another `across` from now on; null: none.
  void set_across(ProcessGroup* across);

 private:
  ProcessGroup& group_;
  ShardedOptions options_;
  std::vector<Shard> shards_;
  std::vector<Tensor> wholes_;  // where parameters stay whole
  std::unordered_map<std::string, std::size_t> index_of_;
  std::unique_ptr<detail::ShardValues> values_;
  std::unique_ptr<detail::ShardGradients> gradients_;
  std::optional<std::uint32_t> stage_;  // entered last, in this pass
};

}  // namespace refrain
