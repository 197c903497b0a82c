// Layer norm over the last dim and batch norm over channels. Statistics are kept in accumulator_t of the input's dtype
// and computed in two passes: E[x²] - mean² cancels when |mean| >> std.
//
// x, out and the parameters share a dtype, any of the four; or, as mixed precision has it, the parameters are f32, out is
// 16-bit and x either. Gradients have the dtype of what they belong to. All arithmetic is in the accumulator type; an
// output or a gradient is rounded once, as it is stored.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

// out = (x - mean) * rstd * weight + bias (Ba, Kiros, Hinton: "Layer Normalization", 2016; biased variance).
// R rows are all leading dims together. All tensors contiguous. Outputs without bytes are left out.
struct LayerNormForward {
  static constexpr std::string_view name = "layer_norm";
  In x;                     // […, C]
  OptionalIn weight, bias;  // [C] [C]
  double eps;
  Out out;                  // […, C]
  OptionalOut mean, rstd;   // […] […] accumulator type
};
void validate(const LayerNormForward& k);
Cost cost(const LayerNormForward& k);
void run(Cpu, const LayerNormForward& k);
void run(Cuda, const LayerNormForward& k);

// The output again from saved statistics, with the bits LayerNormForward gave.
struct LayerNormRebuild {
  static constexpr std::string_view name = "layer_norm_rebuild";
  In x, mean, rstd;         // […, C] […] […]
  OptionalIn weight, bias;  // [C] [C]
  Out out;                  // […, C]
};
void validate(const LayerNormRebuild& k);
Cost cost(const LayerNormRebuild& k);
void run(Cpu, const LayerNormRebuild& k);
void run(Cuda, const LayerNormRebuild& k);

// Gradients of layer norm. `out` is grad_x; it and both parameter gradients may be without bytes (not wanted).
// scratch is only needed with a parameter gradient: the parameters' sums over pieces of rows, in the accumulator type.
struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  In grad_out, x, mean, rstd;             // […, C] […, C] […] […]
  OptionalIn weight;                      // [C]
  Out out;                                // grad_x […, C]
  OptionalOut grad_weight, grad_bias;     // [C] [C]
  OptionalOut scratch;                    // [num_scratch]
  // Pieces follow from shapes alone; a GPU takes more of them, to have work for all its multiprocessors.
  static std::int64_t rows_per_piece(DeviceKind target, std::int64_t num_rows, std::int64_t num_channels);
  static std::int64_t num_scratch(DeviceKind target, std::int64_t num_rows, std::int64_t num_channels);
};
void validate(const LayerNormBackward& k);
Cost cost(const LayerNormBackward& k);
void run(Cpu, const LayerNormBackward& k);
void run(Cuda, const LayerNormBackward& k);

// Statistics of a training batch per channel (Ioffe, Szegedy: "Batch Normalization", 2015), and the running ones moved
// on when they are given: running = running + momentum * (batch - running), with the unbiased batch variance.
// A channel with fewer than two values has no variance: InvalidArgument.
struct BatchNormStatistics {
  static constexpr std::string_view name = "batch_norm_statistics";
  In x;                                    // [N, C, …]
  double eps, momentum;
  Out out;                                 // mean [C] accumulator type
  OptionalOut rstd;                        // [C] accumulator type: 1 / sqrt(biased variance + eps)
  OptionalOut running_mean, running_var;   // [C] [C] in place, of x's dtype or the accumulator type
};
void validate(const BatchNormStatistics& k);
Cost cost(const BatchNormStatistics& k);
void run(Cpu, const BatchNormStatistics& k);
void run(Cuda, const BatchNormStatistics& k);

// mean and rstd of evaluation mode, from the running statistics.
struct BatchNormRunning {
  static constexpr std::string_view name = "batch_norm_running";
  In running_mean, running_var;            // [C] [C] any floating dtype
  double eps;
  Out out;                                 // mean [C] accumulator type
  OptionalOut rstd;                        // [C] accumulator type
};
void validate(const BatchNormRunning& k);
Cost cost(const BatchNormRunning& k);
void run(Cpu, const BatchNormRunning& k);
void run(Cuda, const BatchNormRunning& k);

// out = (x - mean) * rstd * weight + bias per channel; forward and rebuild alike.
struct BatchNormApply {
  static constexpr std::string_view name = "batch_norm";
  In x, mean, rstd;                        // [N, C, …] [C] [C]
  OptionalIn weight, bias;                 // [C] [C]
  Out out;                                 // [N, C, …]
};
void validate(const BatchNormApply& k);
Cost cost(const BatchNormApply& k);
void run(Cpu, const BatchNormApply& k);
void run(Cuda, const BatchNormApply& k);

// Gradients of batch norm. With `batch_statistics` mean and rstd were functions of x; else constants.
struct BatchNormBackward {
  static constexpr std::string_view name = "batch_norm_backward";
  In grad_out, x, mean, rstd;              // [N, C, …] [N, C, …] [C] [C]
  OptionalIn weight;                       // [C]
  bool batch_statistics;
  Out out;                                 // grad_x [N, C, …], may be without bytes
  OptionalOut grad_weight, grad_bias;      // [C] [C]
};
void validate(const BatchNormBackward& k);
Cost cost(const BatchNormBackward& k);
void run(Cpu, const BatchNormBackward& k);
void run(Cuda, const BatchNormBackward& k);

}  // namespace refrain
