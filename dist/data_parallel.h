// Data parallel: every rank has the whole model and a part of each batch; gradients are reduced over the ranks while
// backward still runs.
//
//   DataParallel ddp(group, model.state_dict(), optimizer.parameters());   // rank 0's values on every rank
//   backward(loss, ddp.options());
//   ddp.finish();                                                          // gradients are those of all ranks
//   optimizer.step(lr);
//
// A gradient that is final moves into a bucket, which is reduced once all its gradients are there and the buckets before it
// are under way. The order of the buckets is the order in which gradients become final on rank 0, seen in the first update
// (which goes through the parameters from the last to the first). Reduced gradients are views of their bucket, so nothing is
// kept twice: beside the gradients there are only two buckets' scratch and what the bucket being filled still lacks. Of a bucket
// that is compressed they are views of an f32 copy, and the bucket itself is freed.
//
// A parameter that is used on some ranks counts as zero on the others; one that is used on none has no gradient on any. Under
// accumulation only the last backward of an update takes these options.
#pragma once

#include <refrain/autograd/tape.h>
#include <refrain/core/named_tensor.h>
#include <refrain/dist/buckets.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/under_way.h>

#include <unordered_map>
#include <vector>

namespace refrain {

struct DataParallelOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  // mean: every rank's loss is a mean over its own part. sum: it is this rank's share of the whole batch's loss.
  ReduceOp op = ReduceOp::mean;
  // f16 or bf16: f32 gradients travel in it, half the bytes. Each rank's is rounded to it once, to nearest; they are added in f32
  // in rank order; what comes of it is rounded once and is f32 again. f16: what is above 65504 becomes an infinity, as it does
  // in f16's own arithmetic. f32: nothing is rounded. Gradients of other dtypes travel as they are.
  DType compression = DType::f32;
};

// Rank 0's values on every rank.
void broadcast_values(ProcessGroup& group, std::span<const NamedTensor> tensors);

class DataParallel {
 public:
  // `state` is broadcast from rank 0: parameters and buffers. `parameters` are those whose gradients are reduced. The group
  // must outlive this. Throws InvalidArgument for parameters without gradients or that come twice, and for a compression that
  // is none or has no f32 gradient to compress.
  DataParallel(ProcessGroup& group, std::span<const NamedTensor> state, std::vector<Tensor> parameters,
               const DataParallelOptions& options = {});
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // For the last backward of an update. `then` hears of each parameter when its gradient is the reduced one; its leaves are
  // these parameters in any case. With an update in it (optim/fused_update.h) a bucket is freed when its parameters are updated.
  BackwardOptions options(BackwardOptions then = {});
  // After that backward: reduces what is left and waits. Without a backward, on a rank that has nothing to do in this update,
  // its gradients count as zeros.
  void finish();
  // Waits for what is under way and forgets the update, for an exception that every rank meets at the same gradient.
  void abandon();

  std::int64_t num_updates() const { return num_updates_; }
  // The next update allocates otherwise than the last one: the first has other buckets, the second agrees on their order.
  bool will_change() const { return num_updates_ < 3; }

 private:
  struct Filling {
    Tensor flat;  // its last elements tell, for each part, whether a gradient is in it
    std::vector<bool> has_grad;
    std::int64_t num_missing = 0;
  };
  struct Place {
    std::size_t bucket, part;
  };
  void arrange(std::span<const std::int64_t> order);
  void agree_on_order();
  void take(std::int64_t index, bool has_grad);
  void start_ready();
  void start(std::size_t bucket);
  void deliver();
  void set_grads(const detail::Bucket& bucket, const Filling& filling) const;
  Tensor allocate(const detail::Bucket& bucket) const;
  DType travels_as(DType dtype) const { return dtype == DType::f32 ? options_.compression : dtype; }

  ProcessGroup& group_;
  DataParallelOptions options_;
  std::vector<Tensor> parameters_;
  std::unordered_map<const AutogradSlot*, std::int64_t> index_of_;
  std::vector<detail::Bucket> buckets_;
  std::vector<Place> places_;  // of the parameters
  // Of the update that is going on:
  BackwardOptions then_;
  bool is_running_ = false, has_backward_ = false;
  std::vector<Filling> filling_;
  std::vector<bool> is_taken_;
  std::size_t num_started_ = 0;
  detail::UnderWay<std::size_t> under_way_;  // buckets
  std::vector<std::int64_t> ready_;  // parameters with a gradient, in the order they were final
  std::int64_t num_updates_ = 0;
};

}  // namespace refrain
