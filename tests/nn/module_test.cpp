#include <refrain/nn/embedding.h>
#include <refrain/nn/linear.h>
#include <refrain/nn/module.h>

#include <refrain/autograd/tape.h>
#include <refrain/tests/nn/message.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>

using namespace refrain;

namespace {

struct Pair : Module {
  std::shared_ptr<Linear> left = add<Linear>("left", 3, 4), right = add<Linear>("right", 4, 2, LinearOptions{.bias = false});
};

struct Tree : Module {
  Tree() {
    add_parameter("scale", scale, {5}, Init::ones());
    first = add<Pair>("blocks.0");
    second = add<Pair>("blocks.1");
    add_buffer("count", count, {}, Init::zeros(), DType::f64);
  }
  Tensor scale, count;
  std::shared_ptr<Pair> first, second;
};

struct Tied : Module {
  Tied() {
    table = add<Embedding>("table", 6, 4);
    head = add<Linear>("head", 4, 6, LinearOptions{.bias = false});
    head->weight = table->weight;
  }
  std::shared_ptr<Embedding> table;
  std::shared_ptr<Linear> head;
};

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& t : tensors) names.push_back(t.name);
  return names;
}

std::vector<std::vector<double>> values_of(const Module& module) {
  std::vector<std::vector<double>> values;
  for (const NamedTensor& t : module.state_dict()) values.push_back(t.tensor.to_vector<double>());
  return values;
}

std::vector<NamedTensor> copy_of(std::vector<NamedTensor> state) {
  for (NamedTensor& entry : state) entry.tensor = clone(entry.tensor);
  return state;
}

}  // namespace

TEST_CASE("module: state-dict keys are the member names joined by dots, own parameters first", "[module]") {
  const Tree tree;
  CHECK(names_of(tree.state_dict()) ==
        std::vector<std::string>{"scale", "blocks.0.left.weight", "blocks.0.left.bias", "blocks.0.right.weight", "blocks.1.left.weight",
                                 "blocks.1.left.bias", "blocks.1.right.weight", "count"});
  CHECK(tree.num_parameters() == 5 + 2 * (12 + 4 + 8));
  for (const Tensor& parameter : tree.parameters()) {
    CHECK(parameter.requires_grad());
    CHECK(is_leaf(parameter));
  }
  CHECK_FALSE(tree.count.requires_grad());
  CHECK(tree.children().size() == 2);
  CHECK(tree.children()[1]->name() == "blocks.1");
}

TEST_CASE("module: initial values belong to seed and name, so leaving a part out changes no other", "[module]") {
  const auto build = [](std::uint64_t seed) {
    const CreationScope scope({.seed = seed});
    return values_of(Tree());
  };
  CHECK(build(1) == build(1));
  CHECK(build(1) != build(2));
  const CreationScope scope({.seed = 1});
  const Tree tree;
  CHECK(tree.first->left->weight.to_vector<float>() != tree.second->left->weight.to_vector<float>());
  // Within another module's scope the names count from the creation scope, not from the root.
  const ModuleScope outer("somewhere");
  const CreationScope inner({.seed = 1});
  CHECK(values_of(Tree()) == build(1));
}

TEST_CASE("module: two layers of one name in one scope start with different values", "[module]") {
  const CreationScope scope({});
  const Linear a(3, 4), b(3, 4);
  CHECK(a.weight.to_vector<float>() != b.weight.to_vector<float>());
}

TEST_CASE("module: dtype and device of parameters are the creation scope's", "[module]") {
  const Device device = Device::new_cpu();
  const CreationScope scope({.device = device, .dtype = DType::f64});
  const Pair pair;
  CHECK(pair.left->weight.device() == device);
  CHECK(pair.left->weight.dtype() == DType::f64);
  CHECK(creation_options().dtype == DType::f64);
}

TEST_CASE("module: building takes the parameters' bytes and nothing on top", "[module]") {
  for (const Device& device : {Device::new_cpu(), Device::plan()}) {
    const CreationScope scope({.device = device});
    const Linear linear(1000, 500);
    const std::int64_t own = 4 * linear.num_parameters();
    CHECK(device.live_bytes() == own);
    CHECK(device.live_bytes(MemoryKind::parameter) == own);
    CHECK(device.peak_bytes() == own);
    CHECK(device.reserved_bytes() <= own + own / 100);
  }
}

TEST_CASE("module: the ledger knows every parameter's module", "[module]") {
  const Device device = Device::new_cpu();
  const CreationScope scope({.device = device});
  const Tree tree;
  std::vector<std::string> modules;
  std::int64_t bytes = 0;
  for (const PeakEntry& entry : device.ledger().entries_at_peak()) {
    CHECK(entry.kind == MemoryKind::parameter);
    modules.push_back(entry.module->text);
    bytes += entry.bytes;
  }
  CHECK(bytes == device.peak_bytes());
  CHECK(std::count(modules.begin(), modules.end(), "blocks.1.right") == 1);
  CHECK(std::count(modules.begin(), modules.end(), "") == 1);  // the tree's own
}

TEST_CASE("module: a tied weight is listed, counted and saved once", "[module]") {
  const Tied tied;
  CHECK(names_of(tied.named_parameters()) == std::vector<std::string>{"table.weight"});
  CHECK(tied.num_parameters() == 24);
}

TEST_CASE("module: a state dict goes round", "[module]") {
  const CreationScope scope({});
  const Tree from;
  Tree to;
  REQUIRE(values_of(from) != values_of(to));
  to.load_state_dict(from.state_dict());
  CHECK(values_of(from) == values_of(to));
  CHECK(to.scale.storage() != from.scale.storage());
}

TEST_CASE("module: load_state_dict lists everything that is wrong and changes nothing", "[module]") {
  Tree tree;
  const auto before = values_of(tree);
  auto entries = copy_of(tree.state_dict());
  for (NamedTensor& entry : entries) fill_values(entry.tensor, 9);
  entries[0].name = "sclae";
  entries[1].tensor = zeros({2, 2}, DType::f32);
  entries[2].tensor = zeros({4}, DType::f64);
  const std::string message = message_of([&] { tree.load_state_dict(entries); });
  CHECK(contains(message, "unexpected sclae"));
  CHECK(contains(message, "missing scale"));
  CHECK(contains(message, "blocks.0.left.weight must be f32 [4, 3], got f32 [2, 2]"));
  CHECK(contains(message, "blocks.0.left.bias must be f32 [4], got f64 [4]"));
  CHECK(values_of(tree) == before);
}

TEST_CASE("module: a tied weight loads under either name, and under both only with equal values", "[module]") {
  Tied tied;
  const Tensor ones = full({6, 4}, 1, DType::f32), twos = full({6, 4}, 2, DType::f32);
  for (const std::string name : {"table.weight", "head.weight"}) {
    fill_values(tied.table->weight, 0);
    tied.load_state_dict(std::vector<NamedTensor>{{name, ones}});
    CHECK(tied.head->weight.to_vector<float>() == ones.to_vector<float>());
  }
  tied.load_state_dict(std::vector<NamedTensor>{{"table.weight", twos}, {"head.weight", clone(twos)}});
  CHECK(tied.table->weight.to_vector<float>() == twos.to_vector<float>());
  const std::vector<NamedTensor> both{{"table.weight", ones}, {"head.weight", twos}};
  CHECK(contains(message_of([&] { tied.load_state_dict(both); }), "head.weight is tied to another entry with other values"));
  CHECK(tied.table->weight.to_vector<float>() == twos.to_vector<float>());
}

TEST_CASE("module: train and eval reach every descendant", "[module]") {
  Tree tree;
  CHECK(tree.second->right->is_training());
  tree.eval();
  CHECK_FALSE(tree.is_training());
  CHECK_FALSE(tree.second->right->is_training());
  tree.train();
  CHECK(tree.second->right->is_training());
}

TEST_CASE("module: freeze takes the gradient from what its patterns match", "[module]") {
  Tree tree;
  CHECK(tree.freeze(std::vector<std::string>{"blocks.0.*", "*.bias"}) == 4);
  CHECK_FALSE(tree.first->right->weight.requires_grad());
  CHECK_FALSE(tree.second->left->bias.requires_grad());
  CHECK(tree.second->left->weight.requires_grad());
  CHECK(tree.scale.requires_grad());
  CHECK(contains(message_of([&] { tree.freeze(std::vector<std::string>{"scale", "blocks.7.*"}); }), "blocks.7.*"));
  CHECK(tree.scale.requires_grad());
}

TEST_CASE("module: a member's name is taken once", "[module]") {
  struct Twice : Module {
    Tensor a, b;
    Twice() {
      add_parameter("a", a, {1}, Init::zeros());
      add_buffer("a", b, {1}, Init::zeros());
    }
  };
  CHECK(contains(message_of([] { Twice(); }), "'a'"));
}

TEST_CASE("module: layers refuse sizes that cannot be", "[module]") {
  CHECK_THROWS_AS(Linear(0, 3), InvalidArgument);
  CHECK_THROWS_AS(Embedding(3, -1), InvalidArgument);
}
