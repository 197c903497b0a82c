// A build without CUDA: kernels of a device that cannot be had. A new kernel needs a line here, or does not link.
#include <refrain/kernels/attention/attention.h>
#include <refrain/kernels/concat/concat.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/loss/loss.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/kernels/norm/norm.h>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/reduce_ranks.h>
#include <refrain/kernels/reduce/value_range.h>
#include <refrain/kernels/softmax/softmax.h>
#include <refrain/kernels/update/update.h>

namespace refrain {

namespace {

[[noreturn]] void no_cuda() { fail<InternalError>("internal error: a kernel was launched on CUDA in a build without it"); }

}  // namespace

void run(Cuda, const AttentionForward&) { no_cuda(); }
void run(Cuda, const AttentionBackward&) { no_cuda(); }
void run(Cuda, const Concat&) { no_cuda(); }
void run(Cuda, const Convert&) { no_cuda(); }
void run(Cuda, const Conv2dForward&) { no_cuda(); }
void run(Cuda, const Conv2dBackwardInput&) { no_cuda(); }
void run(Cuda, const Conv2dBackwardWeight&) { no_cuda(); }
void run(Cuda, const Conv2dBackwardBias&) { no_cuda(); }
void run(Cuda, const PatchEmbeddingForward&) { no_cuda(); }
void run(Cuda, const PatchEmbeddingBackwardInput&) { no_cuda(); }
void run(Cuda, const PatchEmbeddingBackwardWeight&) { no_cuda(); }
void run(Cuda, const Dropout&) { no_cuda(); }
void run(Cuda, const StochasticDepth&) { no_cuda(); }
void run(Cuda, const Unary&) { no_cuda(); }
void run(Cuda, const UnaryBackward&) { no_cuda(); }
void run(Cuda, const Scalar&) { no_cuda(); }
void run(Cuda, const ScalarBackward&) { no_cuda(); }
void run(Cuda, const Binary&) { no_cuda(); }
void run(Cuda, const DivBackward&) { no_cuda(); }
void run(Cuda, const Compare&) { no_cuda(); }
void run(Cuda, const Where&) { no_cuda(); }
void run(Cuda, const EmbeddingForward&) { no_cuda(); }
void run(Cuda, const EmbeddingBackward&) { no_cuda(); }
void run(Cuda, const CrossEntropyForward&) { no_cuda(); }
void run(Cuda, const CrossEntropyBackward&) { no_cuda(); }
void run(Cuda, const ReduceLosses&) { no_cuda(); }
void run(Cuda, const SpreadLossGradient&) { no_cuda(); }
void run(Cuda, const MseForward&) { no_cuda(); }
void run(Cuda, const MseBackward&) { no_cuda(); }
void run(Cuda, const CountCorrect&) { no_cuda(); }
void run(Cuda, const CountTargets&) { no_cuda(); }
void run(Cuda, const Matmul&) { no_cuda(); }
void run(Cuda, const LinearForward&) { no_cuda(); }
void run(Cuda, const LinearBackwardInput&) { no_cuda(); }
void run(Cuda, const LinearBackwardWeight&) { no_cuda(); }
void run(Cuda, const LinearBackwardBias&) { no_cuda(); }
void run(Cuda, const LayerNormForward&) { no_cuda(); }
void run(Cuda, const LayerNormRebuild&) { no_cuda(); }
void run(Cuda, const LayerNormBackward&) { no_cuda(); }
void run(Cuda, const BatchNormStatistics&) { no_cuda(); }
void run(Cuda, const BatchNormRunning&) { no_cuda(); }
void run(Cuda, const BatchNormApply&) { no_cuda(); }
void run(Cuda, const BatchNormBackward&) { no_cuda(); }
void run(Cuda, const Sum&) { no_cuda(); }
void run(Cuda, const SquaredNorm&) { no_cuda(); }
void run(Cuda, const SquaredNorms&) { no_cuda(); }
void run(Cuda, const Max&) { no_cuda(); }
void run(Cuda, const MaxBackward&) { no_cuda(); }
void run(Cuda, const ReduceRanks&) { no_cuda(); }
void run(Cuda, const ValueRange&) { no_cuda(); }
void run(Cuda, const SoftmaxForward&) { no_cuda(); }
void run(Cuda, const SoftmaxBackward&) { no_cuda(); }
void run(Cuda, const SgdUpdate&) { no_cuda(); }
void run(Cuda, const AdamUpdate&) { no_cuda(); }
void run(Cuda, const SgdUpdates&) { no_cuda(); }
void run(Cuda, const AdamUpdates&) { no_cuda(); }
void run(Cuda, const ZeroInPlace&) { no_cuda(); }
void run(Cuda, const ScaleInPlace&) { no_cuda(); }

}  // namespace refrain
