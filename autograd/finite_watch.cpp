#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/session.h>
#include <refrain/core/view.h>
#include <refrain/kernels/reduce/value_range.h>

#include <sstream>

namespace refrain {

namespace {

bool has_values(const Tensor& t) { return t.defined() && is_floating(t.dtype()) && t.has_bytes(); }

ValueSummary summary_of(const Tensor& t, std::string what) {
  const KindScope kind(MemoryKind::workspace);
  const Tensor range = empty({3}, DType::f64, t.device());
  launch(ValueRange{.x = contiguous_values(t), .out = range});
  const std::vector<double> values = range.to_vector<double>();
  return {std::move(what), t.dtype(), t.shape(), values[0], values[1], std::int64_t(values[2])};
}

void write(std::ostream& out, const ValueSummary& s) {
  out << s.what << ' ' << s.dtype << ' ' << s.shape;
  if (s.least <= s.greatest) out << " in [" << s.least << ", " << s.greatest << "]";
  if (s.num_non_finite > 0) out << (s.least <= s.greatest ? " and " : " ") << s.num_non_finite << " not finite";
}

}  // namespace

std::int64_t count_non_finite(const Tensor& t) { return has_values(t) ? summary_of(t, {}).num_non_finite : 0; }

std::string to_text(const NonFiniteFinding& finding) {
  std::ostringstream out;
  out << finding.op << " in module '" << finding.module << "', " << name_of(finding.phase) << ": ";
  write(out, finding.result);
  for (std::size_t i = 0; i < finding.inputs.size(); ++i) {
    out << (i == 0 ? ", from " : ", ");
    write(out, finding.inputs[i]);
  }
  return out.str();
}

FiniteWatch::FiniteWatch() : outer_(detail::autograd_state().watch) { detail::autograd_state().watch = this; }
FiniteWatch::~FiniteWatch() { detail::autograd_state().watch = outer_; }

void FiniteWatch::look(std::string_view op, std::span<const Tensor> results, std::string_view result_name,
                       std::span<const Tensor* const> inputs, std::string_view input_name) {
  if (born_) return;
  const ContextScope<bool> runs_kernels(&ThreadContext::skip_kernels, false);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!has_values(results[i])) continue;
    const ValueSummary result = summary_of(results[i], results.size() > 1 ? concat(result_name, ' ', i) : std::string(result_name));
    if (result.num_non_finite == 0) continue;
    NonFiniteFinding finding{std::string(op), thread_context().module->text, thread_context().phase, result, {}};
    bool is_born = true;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (!has_values(*inputs[k])) continue;
      finding.inputs.push_back(summary_of(*inputs[k], concat(input_name, ' ', k)));
      is_born = is_born && finding.inputs.back().num_non_finite == 0;
    }
    if (is_born) born_ = finding;
    else if (!reached_) reached_ = finding;
    return;
  }
}

}  // namespace refrain
