#include <refrain/autograd/all.h>
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

using namespace refrain;

namespace {

Tensor leaf(std::vector<float> values, Shape shape) {
  const Tensor t = from_values<float>(values, shape);
  set_requires_grad(t);
  return t;
}

std::vector<float> values_of(const Tensor& t) { return convert(detach(t), DType::f32).to_vector<float>(); }

}  // namespace

TEST_CASE("precision: every mode has one word, other words are refused with the list") {
  const std::map<std::string, Precision> words{{"32-true", Precision::f32_true},       {"16-mixed", Precision::f16_mixed},
                                               {"bf16-mixed", Precision::bf16_mixed}, {"16-true", Precision::f16_true},
                                               {"bf16-true", Precision::bf16_true}};
  for (const auto& [word, precision] : words) {
    CHECK(parse_precision(word) == precision);
    CHECK(name_of(precision) == word);
  }
  CHECK(parameter_dtype(Precision::bf16_mixed) == DType::f32);
  CHECK(compute_dtype(Precision::bf16_mixed) == DType::bf16);
  CHECK(parameter_dtype(Precision::f16_true) == DType::f16);
  CHECK_THROWS_WITH(parse_precision("fp16"), Catch::Matchers::Contains("bf16-mixed") && Catch::Matchers::Contains("'fp16'"));
}

TEST_CASE("precision: the table names each op once, and unknown ops follow their inputs") {
  std::set<std::string_view> seen;
  for (const OpRule& rule : precision_table()) {
    CHECK(seen.insert(rule.op).second);
    CHECK((rule.precision == OpPrecision::compute) == (rule.activations > 0));
  }
  CHECK(precision_rule("an embedder's op").precision == OpPrecision::inputs);
}

TEST_CASE("precision: docs/numerics.md lists every op of the table in the row of its rule") {
  const std::map<OpPrecision, std::string> words{
      {OpPrecision::compute, "compute:"}, {OpPrecision::writes, "writes:"}, {OpPrecision::f32, "f32:"}, {OpPrecision::inputs, "inputs:"}};
  const std::string page = read_text_file(REFRAIN_SOURCE_DIR "/docs/numerics.md");
  std::istringstream lines(page.substr(page.find("| ops | in a mixed mode |")));
  std::map<std::string, std::string> rule_of;  // op -> first word of its row's second column
  for (std::string line; std::getline(lines, line) && line.starts_with("|");) {
    const std::size_t middle = line.find(" | ");
    for (std::size_t at = line.find('`'); at < middle; at = line.find('`', at + 1)) {
      const std::size_t end = line.find('`', at + 1);
      rule_of[line.substr(at + 1, end - at - 1)] = line.substr(middle + 3, line.find(' ', middle + 3) - middle - 3);
      at = end;
    }
  }
  CHECK(rule_of.size() == precision_table().size());
  for (const OpRule& rule : precision_table()) {
    INFO(rule.op);
    CHECK(rule_of[std::string(rule.op)] == words.at(rule.precision));
  }
}

TEST_CASE("precision: in a mixed mode products run in 16 bits, sums and exponentials in f32, f64 is left alone") {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({1, 1, 1, 1}, {2, 2}), wide = convert(detach(x), DType::f64);
  const PrecisionScope scope(Precision::bf16_mixed);
  const Tensor y = linear(x, w);
  CHECK(y.dtype() == DType::bf16);
  CHECK(matmul(y, w).dtype() == DType::bf16);
  CHECK(gelu(y).dtype() == DType::bf16);
  CHECK(exp(y).dtype() == DType::f32);
  CHECK(sum(y).dtype() == DType::f32);
  CHECK(softmax(y, 1).dtype() == DType::f32);
  CHECK((y + x).dtype() == DType::f32);
  CHECK(concat({y, x}, 0).dtype() == DType::f32);
  CHECK(concat({y, y}, 0).dtype() == DType::bf16);
  CHECK(layer_norm(x, Tensor(), Tensor(), 1e-5).dtype() == DType::bf16);
  CHECK(matmul(wide, wide).dtype() == DType::f64);
  {
    const PrecisionScope inner(Precision::f32_true);
    CHECK(linear(x, w).dtype() == DType::f32);
  }
  DType other = DType::i64;
  std::thread([&] { other = linear(detach(x), detach(w)).dtype(); }).join();
  CHECK(other == DType::f32);  // the mode belongs to the thread
}

TEST_CASE("precision: gradients of f32 parameters are f32 in mixed modes, backward may be called outside the scope") {
  for (const Precision precision : {Precision::f16_mixed, Precision::bf16_mixed}) {
    const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({0.5, -1, 2, 0.25}, {2, 2}), bias = leaf({1, 2}, {2});
    Tensor loss;
    {
      const PrecisionScope scope(precision);
      loss = sum(linear(x, w, bias));
    }
    CHECK(loss.dtype() == DType::f32);
    backward(loss);
    for (const Tensor& t : {x, w, bias}) CHECK(grad_of(t).dtype() == DType::f32);
    CHECK(values_of(grad_of(w)) == std::vector<float>{4, 6, 4, 6});
    CHECK(values_of(grad_of(x)) == std::vector<float>{2.5, -0.75, 2.5, -0.75});
    CHECK(values_of(grad_of(bias)) == std::vector<float>{2, 2});
  }
}

// f16 ends at 65,504 and f32 keeps 257: only a replay in bf16 gives these.
TEST_CASE("precision: a region replays in the precision of its first run, wherever backward is called") {
  for (const auto& [value, rounded] : {std::pair(257.0f, 256.0f), std::pair(70000.0f, 70144.0f)}) {
    for (const bool backward_in_f16 : {false, true}) {
      const Tensor x = leaf({value}, {1, 1}), w = leaf({1}, {1, 1});
      Tensor y;
      {
        const PrecisionScope scope(Precision::bf16_mixed);
        y = checkpoint([&](const Tensor& t) { return linear(t, w); }, x);
      }
      CHECK(values_of(y) == std::vector<float>{rounded});
      const PrecisionScope scope(backward_in_f16 ? Precision::f16_mixed : Precision::f32_true);
      backward(y);
      CHECK(values_of(grad_of(w)) == std::vector<float>{rounded});
      CHECK(values_of(grad_of(x)) == std::vector<float>{1});
    }
  }
}
