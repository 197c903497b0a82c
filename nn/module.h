// A tree of modules: names, parameters, buffers, training mode. A module is held by std::shared_ptr, is never copied,
// and registers its parts in its constructor; state-dict keys are the member names joined by dots.
//
//   struct Net : Module {
//     std::shared_ptr<Linear> fc1 = add<Linear>("fc1", 784, 100), fc2 = add<Linear>("fc2", 100, 10);
//     Tensor operator()(const Tensor& x) const { const ModuleScope scope = enter(); return (*fc2)(relu((*fc1)(x))); }
//   };
#pragma once

#include <refrain/core/context.h>
#include <refrain/core/named_tensor.h>
#include <refrain/nn/creation.h>
#include <refrain/nn/init.h>

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain {

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Name within the parent, `attention` or `blocks.3`; empty for the root of a tree.
  const std::string& name() const { return name_; }
  std::vector<std::shared_ptr<Module>> children() const;

  // In the order of registration, own before children's. A tensor shared by several members is listed once, under
  // the first name.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<Tensor> parameters() const;
  std::vector<NamedTensor> named_buffers() const;
  std::int64_t num_parameters() const;

  // Parameters, then buffers; the tensors are the module's own, not copies.
  std::vector<NamedTensor> state_dict() const;
  // Copies values into the module's tensors. Throws InvalidArgument, with everything that is missing, unexpected or of
  // another shape or dtype, before anything is changed. A tied tensor may come under any of its names; under several
  // only with equal values.
  void load_state_dict(std::span<const NamedTensor> entries);

  bool is_training() const { return is_training_; }
  void train(bool on = true);
  void eval() { train(false); }

  // Turns requires_grad off for parameters whose full name matches one of the patterns; `*` stands for any characters,
  // dots too, `?` for one. Returns how many were frozen. Throws InvalidArgument for a pattern that matches none.
  std::int64_t freeze(std::span<const std::string> patterns);

  // While the scope lives, work and memory belong to this module.
  ModuleScope enter() const { return ModuleScope(name_); }

 protected:
  // Creates a parameter in place: on the thread's creation device and dtype, of kind `parameter`, wanting a gradient.
  // `member` is the member that holds it; assigning another tensor to the member ties or replaces the parameter.
  void add_parameter(std::string_view name, Tensor& member, const Shape& shape, const Init& init);
  // Lists a member that holds a parameter created elsewhere (tied weights).
  void add_tied(std::string_view name, Tensor& member);
  // A tensor that belongs to the state but is not trained; accounted as `parameter`.
  void add_buffer(std::string_view name, Tensor& member, const Shape& shape, const Init& init);
  void add_buffer(std::string_view name, Tensor& member, const Shape& shape, const Init& init, DType dtype);

  // Builds a child inside its name, so that its parameters are created and accounted under their full path.
  // The name may hold dots: `blocks.3`.
  template <std::derived_from<Module> M, class... Arguments>
  std::shared_ptr<M> add(std::string_view child_name, Arguments&&... arguments) {
    const ModuleScope scope(child_name);
    auto child = std::make_shared<M>(std::forward<Arguments>(arguments)...);
    add_child(child_name, child);
    return child;
  }

 private:
  struct Member {
    std::string name;
    Tensor* tensor;
  };
  using Visit = std::function<void(const std::string& full_name, Tensor& tensor)>;
  void add_child(std::string_view child_name, std::shared_ptr<Module> child);
  void check_new_name(std::string_view new_name) const;
  Tensor create(std::string_view member_name, const Shape& shape, const Init& init, DType dtype) const;
  void visit(std::vector<Member> Module::*members, const std::string& prefix, const Visit& f) const;
  std::vector<NamedTensor> unique(std::vector<Member> Module::*members) const;

  std::string name_;
  std::vector<Member> parameters_, buffers_;
  std::vector<std::shared_ptr<Module>> children_;
  bool is_training_ = true;
};

}  // namespace refrain
