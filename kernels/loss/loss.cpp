// Validation and cost of the losses.
#include <refrain/kernels/loss/loss.h>

namespace refrain {

namespace {

void check_tensor(std::string_view kernel, std::string_view argument, const TensorArg& arg, const Shape& shape, DType dtype) {
  check_shape(kernel, argument, arg, shape);
  check_dtype(kernel, argument, arg, dtype);
  check_contiguous(kernel, argument, arg);
}

template <class K>
Shape check_logits(const K& k) {
  check_floating(K::name, "logits", k.logits);
  check_contiguous(K::name, "logits", k.logits);
  check(k.logits.num_dims() >= 1, K::name, ": logits must be […, V], got ", k.logits.shape());
  check(k.logits.dim(-1) >= 1, K::name, ": logits must have at least 1 class, got ", k.logits.shape());
  Shape rows = k.logits.shape();
  rows.erase(rows.size() - 1);
  check_tensor(K::name, "targets", k.targets, rows, DType::i64);
  return rows;
}

template <class K>
Shape check_cross_entropy(const K& k) {
  const Shape rows = check_logits(k);
  check(k.label_smoothing >= 0 && k.label_smoothing <= 1, K::name, ": label_smoothing must be 0 … 1, got ", k.label_smoothing);
  return rows;
}

Shape with_two(Shape rows) {
  rows.push_back(2);
  return rows;
}

template <class K>
void check_reduced(const K& k) {
  check(k.reduction != Reduction::none, K::name, ": reduction must be mean or sum, got none");
  check(k.out.dtype() == DType::f64 || k.out.dtype() == DType::f32, K::name, ": out must be f64 or f32, got ", k.out.dtype());
  check_tensor(K::name, "targets", k.targets, k.targets.shape(), DType::i64);
}

template <class K>
void check_mse(const K& k) {
  check_floating(K::name, "x", k.x);
  check_contiguous(K::name, "x", k.x);
  check_shape(K::name, "target", k.target, k.x.shape());
  check_contiguous(K::name, "target", k.target);
  const DType x = k.x.dtype(), target = k.target.dtype();
  check(x == target || (x == DType::f32 && is_16_bit(target)) || (is_16_bit(x) && target == DType::f32), K::name,
        ": x and target must share a dtype, or be f32 and a 16-bit type, got ", x, " and ", target);
}

}  // namespace

std::string_view name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::mean: return "mean";
    case Reduction::sum: return "sum";
    case Reduction::none: return "none";
  }
  return "?";
}

void validate(const CrossEntropyForward& k) {
  const Shape rows = check_cross_entropy(k);
  check_tensor(k.name, "out", k.out, k.reduction == Reduction::none ? rows : Shape{}, accumulator_dtype(k.logits.dtype()));
  const DType accumulator = accumulator_dtype(k.logits.dtype());
  if (k.statistics.defined()) check_tensor(k.name, "statistics", k.statistics, with_two(rows), accumulator);
  if (k.reduction == Reduction::none) return;
  check(k.row_losses.defined(), k.name, ": row_losses must be given for reduction ", name_of(k.reduction));
  check_tensor(k.name, "row_losses", k.row_losses, rows, accumulator);
}

Cost cost(const CrossEntropyForward& k) { return {14.0 * double(k.logits.numel()), k.logits.bytes() + k.targets.bytes()}; }

void validate(const CrossEntropyBackward& k) {
  const Shape rows = check_cross_entropy(k);
  check_tensor(k.name, "grad_out", k.grad_out, k.reduction == Reduction::none ? rows : Shape{}, accumulator_dtype(k.logits.dtype()));
  check_tensor(k.name, "statistics", k.statistics, with_two(rows), accumulator_dtype(k.logits.dtype()));
  check_tensor(k.name, "grad_logits", k.out, k.logits.shape(), k.logits.dtype());
}

Cost cost(const CrossEntropyBackward& k) {
  return {14.0 * double(k.logits.numel()), k.logits.bytes() + k.out.bytes() + k.targets.bytes() + k.statistics.bytes()};
}

void validate(const ReduceLosses& k) {
  check_reduced(k);
  check_tensor(k.name, "row_losses", k.row_losses, k.targets.shape(), k.out.dtype());
  check_tensor(k.name, "out", k.out, {}, k.out.dtype());
}

Cost cost(const ReduceLosses& k) { return {double(k.row_losses.numel()), k.row_losses.bytes() + k.targets.bytes()}; }

void validate(const SpreadLossGradient& k) {
  check_reduced(k);
  check_tensor(k.name, "grad_out", k.grad_out, {}, k.out.dtype());
  check_tensor(k.name, "out", k.out, k.targets.shape(), k.out.dtype());
}

Cost cost(const SpreadLossGradient& k) { return {0, k.targets.bytes() + k.out.bytes()}; }

void validate(const MseForward& k) {
  check_mse(k);
  check_tensor(k.name, "out", k.out, k.reduction == Reduction::none ? k.x.shape() : Shape{}, accumulator_dtype(k.x.dtype()));
  if (k.reduction == Reduction::none) return;
  check(k.partials.defined(), k.name, ": partials must be given for reduction ", name_of(k.reduction));
  check_tensor(k.name, "partials", k.partials, {MseForward::num_partials(k.x.numel())}, DType::f64);
}

Cost cost(const MseForward& k) { return {3.0 * double(k.x.numel()), k.x.bytes() + k.target.bytes() + k.out.bytes()}; }

void validate(const MseBackward& k) {
  check_mse(k);
  check_tensor(k.name, "grad_out", k.grad_out, k.reduction == Reduction::none ? k.x.shape() : Shape{}, accumulator_dtype(k.x.dtype()));
  check_tensor(k.name, "grad_x", k.out, k.x.shape(), k.x.dtype());
}

Cost cost(const MseBackward& k) { return {3.0 * double(k.x.numel()), 2 * k.x.bytes() + k.target.bytes()}; }

void validate(const CountCorrect& k) {
  check_logits(k);
  check_tensor(k.name, "out", k.out, {}, DType::i64);
}

Cost cost(const CountCorrect& k) { return {double(k.logits.numel()), k.logits.bytes() + k.targets.bytes()}; }

void validate(const CountTargets& k) {
  check_tensor(k.name, "targets", k.targets, k.targets.shape(), DType::i64);
  check_tensor(k.name, "out", k.out, {}, DType::i64);
}

Cost cost(const CountTargets& k) { return {double(k.targets.numel()), k.targets.bytes()}; }

}  // namespace refrain
