// Differentiable ops. An op is a struct that says how to go forward, what to save and how to go back:
//
//   struct Gelu {
//     static constexpr std::string_view name = "gelu";
//     static constexpr Rebuild rebuild = Rebuild::from_saved;   // optional
//     struct Saved { SavedTensor x; };                          // exactly what backward reads
//     static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x);
//     static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs);
//     static Tensor rebuild_output(const Saved& saved);         // with from_saved; (saved, input) with from_input
//   };
//   Tensor gelu(const Tensor& x) { return apply<Gelu>(x); }
//
// apply() does the rest: records, gradient needs, checkpoint regions and replay. See docs/adding-an-op.md.
#pragma once

#include <refrain/autograd/record.h>

#include <array>
#include <concepts>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace refrain {

// A result of the running op: the output, or something auxiliary that is saved. Allocate in a fixed order, outputs
// first. In a replay it may come back without bytes (nobody will read it) or already filled (kept from the first run).
Tensor op_output(const Shape& shape, DType dtype, const Device& device);

namespace detail {

// The untyped half of apply(): one application of an op.
class ApplyFrame {
 public:
  ApplyFrame(const OpInfo& info, std::span<const Tensor* const> inputs);
  ~ApplyFrame();
  ApplyFrame(const ApplyFrame&) = delete;
  ApplyFrame& operator=(const ApplyFrame&) = delete;

  Needs needs() const { return needs_; }
  bool wants_record() const { return wants_record_; }
  Tensor output(const Shape& shape, DType dtype, const Device& device);
  std::shared_ptr<SavedEntry> save(const Tensor& t);
  // Attaches autograd to the outputs. `record` is null unless wants_record().
  void finish(std::span<Tensor> outputs, const std::shared_ptr<Record>& record);

  static ApplyFrame* current();

 private:
  void check_devices() const;
  void check_inputs_have_bytes() const;

  OpInfo info_;
  std::vector<const Tensor*> inputs_;
  Needs needs_;
  bool wants_record_ = false;
  bool is_nested_ = false;    // an op used inside another op's forward: plain arithmetic
  std::vector<Tensor> results_;                            // in the order of op_output()
  std::vector<Tensor> observed_;                           // saved in a first run: only noted
  std::vector<std::shared_ptr<SavedEntry>> entries_;
  ApplyFrame* outer_;
  ContextScope<std::string_view> op_scope_;
  ContextScope<bool> inside_scope_;
  ContextScope<bool> skip_scope_;
};

template <class Op>
constexpr Rebuild rebuild_of() {
  if constexpr (requires { Op::rebuild; }) return Op::rebuild;
  else return Rebuild::never;
}

template <class Op>
class OpRecord final : public Record {
 public:
  OpRecord(const OpInfo& op, typename Op::Saved op_saved) : Record(op), saved_values_(std::move(op_saved)) {}

  std::vector<Tensor> backward(std::span<const Tensor> grad_outs) override {
    if constexpr (requires(const Tensor& g) { Op::backward(saved_values_, g, Needs{}); }) {
      return as_vector(Op::backward(saved_values_, grad_outs[0], needs));
    } else {
      return as_vector(with_array(grad_outs));
    }
  }

  Tensor rebuild() const override {
    if constexpr (rebuild_of<Op>() == Rebuild::from_saved) return Op::rebuild_output(saved_values_);
    else if constexpr (rebuild_of<Op>() == Rebuild::from_input) return Op::rebuild_output(saved_values_, rebuild_input->get());
    else fail<InternalError>("internal error: ", info.name, " cannot be rebuilt");
  }

 private:
  static std::vector<Tensor> as_vector(std::vector<Tensor> grads) { return grads; }
  template <std::size_t N>
  static std::vector<Tensor> as_vector(Grads<N> grads) {
    return std::move(grads).take();
  }
  auto with_array(std::span<const Tensor> grad_outs) const {
    using Outputs = typename decltype(outputs_of(&Op::backward))::type;
    Outputs grads;
    for (std::size_t i = 0; i < grads.size(); ++i) grads[i] = grad_outs[i];
    return Op::backward(saved_values_, grads, needs);
  }
  template <class T> struct Identity { using type = T; };
  template <class R, class Array>
  static Identity<Array> outputs_of(R (*)(const typename Op::Saved&, const Array&, Needs));

  typename Op::Saved saved_values_;
};

inline void collect_inputs(std::vector<const Tensor*>& inputs, const Tensor& t) { inputs.push_back(&t); }
inline void collect_inputs(std::vector<const Tensor*>& inputs, std::span<const Tensor> list) {
  for (const Tensor& t : list) inputs.push_back(&t);
}
template <class T>
void collect_inputs(std::vector<const Tensor*>&, const T&) {}

}  // namespace detail

template <class Op>
concept Differentiable = requires {
  { Op::name } -> std::convertible_to<std::string_view>;
  typename Op::Saved;
  &Op::forward;
  &Op::backward;
};

namespace detail {

// The arguments of an op as a mixed precision mode hands them to it: tensors converted as the table in precision.h
// says, all else untouched.
class InputCast {
 public:
  // Whether there is anything to do: a mixed mode is on, this is no op inside an op, and the table says so.
  static bool is_wanted(std::string_view op);

  InputCast(std::string_view op, std::span<const Tensor* const> inputs);
  Tensor operator()(const Tensor& t);
  std::span<const Tensor> operator()(std::span<const Tensor> list);
  template <class T>
  const T& operator()(const T& argument) const {
    return argument;
  }

 private:
  int num_activations_ = 0, position_ = 0;
  DType dtype_ = DType::f32;
  std::vector<std::vector<Tensor>> lists_;  // what the spans show
};

template <class Op, class... Args>
auto apply_as_is(const Args&... args) {
  std::vector<const Tensor*> inputs;
  inputs.reserve(sizeof...(Args));
  (detail::collect_inputs(inputs, args), ...);
  constexpr OpInfo info{Op::name, detail::rebuild_of<Op>()};
  detail::ApplyFrame frame(info, inputs);
  auto result = Op::forward(frame.needs(), args...);
  std::shared_ptr<Record> record;
  if (frame.wants_record()) record = std::make_shared<detail::OpRecord<Op>>(info, std::move(result.second));
  if constexpr (std::is_same_v<decltype(result.first), Tensor>) {
    frame.finish(std::span<Tensor>(&result.first, 1), record);
  } else {
    frame.finish(std::span<Tensor>(result.first), record);
  }
  return std::move(result.first);
}

}  // namespace detail

// Runs Op forward on the arguments and, where gradients are wanted, puts it on the tape.
template <Differentiable Op, class... Args>
auto apply(const Args&... args) {
  if (!detail::InputCast::is_wanted(Op::name)) return detail::apply_as_is<Op>(args...);
  std::vector<const Tensor*> inputs;
  (detail::collect_inputs(inputs, args), ...);
  detail::InputCast cast(Op::name, inputs);
  const std::tuple<Args...> converted{cast(args)...};  // in order
  return std::apply([](const Args&... as) { return detail::apply_as_is<Op>(as...); }, converted);
}

}  // namespace refrain
