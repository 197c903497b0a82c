// Groups of parameters with and without weight decay.
#include <refrain/autograd/tape.h>
#include <refrain/optim/parameter_group.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

NamedTensor parameter(const std::string& name, const Shape& shape, bool wants_grad = true) {
  const Tensor t = zeros(shape, DType::f32);
  if (wants_grad) set_requires_grad(t);
  return {name, t};
}

}  // namespace

TEST_CASE("make_groups: norms and biases have no decay, frozen parameters are left out") {
  const std::vector<NamedTensor> parameters{parameter("fc.weight", {2, 3}), parameter("fc.bias", {2}), parameter("norm.weight", {3}),
                                            parameter("scale", {}),         parameter("frozen.weight", {2, 2}, false)};
  const auto groups = make_groups(parameters, 0.1);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].names == std::vector<std::string>{"fc.weight"});
  CHECK(groups[0].weight_decay == 0.1);
  CHECK(groups[1].names == std::vector<std::string>{"fc.bias", "norm.weight", "scale"});
  CHECK(groups[1].weight_decay == 0);
  CHECK(is_same(groups[0].parameters[0], parameters[0].tensor));
  CHECK(groups[1].lr_scale == 1);
}

TEST_CASE("make_groups: patterns take parameters out of the decay") {
  const std::vector<NamedTensor> parameters{parameter("embed.position", {1, 5, 3}), parameter("embed.patch.weight", {3, 4}),
                                            parameter("blocks.0.fc.weight", {3, 3})};
  const auto decayed = [&](const std::vector<std::string>& patterns) {
    const auto groups = make_groups(parameters, 0.1, patterns);
    return groups[0].weight_decay == 0 ? std::vector<std::string>{} : groups[0].names;
  };
  CHECK(decayed({"embed.*"}) == std::vector<std::string>{"blocks.0.fc.weight"});
  CHECK(decayed({"embed.position"}) == std::vector<std::string>{"embed.patch.weight", "blocks.0.fc.weight"});
  CHECK(decayed({"*.?.fc.*", "*position"}) == std::vector<std::string>{"embed.patch.weight"});
  CHECK(decayed({"*"}).empty());
  CHECK(message_of([&] { make_groups(parameters, 0.1, std::vector<std::string>{"embed"}); }) ==
        "make_groups: no parameter matches 'embed'");
  CHECK(message_of([&] { make_groups(parameters, 0.1, std::vector<std::string>{"*.weights"}); }) ==
        "make_groups: no parameter matches '*.weights'");
}
