// Ordinary and fused steps of an optimizer on the device: the CPU's bits, and its answer to a gradient that is not finite.
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/tape.h>
#include <refrain/optim/all.h>
#include <refrain/tests/cuda/layouts.h>

#include <memory>

using namespace refrain;

namespace {

constexpr std::int64_t kNum = 60;

struct Course {
  std::vector<Tensor> parameters;
  std::unique_ptr<Optimizer> optimizer;
};

Course course(const Device& device, DType dtype = DType::f32) {
  Course c;
  for (std::int64_t i = 0; i < kNum; ++i) {
    c.parameters.push_back(to_device(tensor_of(random_values(1 + 17 * i, std::uint64_t(i), -1, 1), {1 + 17 * i}, dtype), device));
    set_requires_grad(c.parameters.back());
  }
  const UpdateOptions update{.rounding = is_16_bit(dtype) ? Rounding::stochastic : Rounding::nearest};
  c.optimizer = std::make_unique<AdamW>(
      std::vector<ParameterGroup>{{.parameters = c.parameters, .weight_decay = 0.1, .lr_scale = 0.5}}, AdamOptions{}, update);
  return c;
}

// Parameter `bad` gets gradients of infinity; -1: none does.
Tensor loss_of(const Course& c, std::int64_t bad) {
  Tensor total;
  for (std::int64_t i = 0; i < kNum; ++i) {
    const Tensor& p = c.parameters[std::size_t(i)];
    const Tensor term = sum(mul(mul(p, i == bad ? 3e38 : 1.0 + double(i % 3)), i == bad ? 1e38 : 1.0));
    total = total.defined() ? total + term : term;
  }
  return total;
}

std::vector<std::vector<double>> values_of(const Course& c) {
  std::vector<std::vector<double>> all;
  for (const Tensor& p : c.parameters) all.push_back(p.without_autograd().to_vector<double>());
  for (const NamedTensor& t : c.optimizer->state_dict().tensors) all.push_back(t.tensor.to_vector<double>());
  all.emplace_back();
  for (const auto& entry : c.optimizer->state_dict().scalars) all.back().push_back(entry.second);
  return all;
}

std::string fused_step(const Course& c, std::int64_t bad, bool stops, std::int64_t* first = nullptr) {
  FusedUpdate update(*c.optimizer, 1e-2, 0.5, stops);
  try {
    backward(loss_of(c, bad), update.options());
    update.finish();
  } catch (const NonFinite& error) {
    c.optimizer->zero_grad();
    return error.what();
  }
  if (first != nullptr) *first = update.first_non_finite();
  return "";
}

}  // namespace

TEST_CASE("cuda optimizer: ordinary and fused steps have the CPU's bits, counts and norm") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Course here = course(Device::new_cpu(), dtype), there = course(Device::new_cuda(), dtype),
                 fused = course(Device::new_cuda(), dtype);
    for (int step = 0; step < 3; ++step) {
      double norms[2];
      for (const Course* c : {&here, &there}) {
        backward(loss_of(*c, -1));
        norms[c == &there] = global_grad_norm(c->parameters);
        c->optimizer->step(1e-2, 0.5);
        c->optimizer->zero_grad();
      }
      FusedUpdate update(*fused.optimizer, 1e-2, 0.5);
      backward(loss_of(fused, -1), update.options());
      CHECK(update.finish() == 0.5 * norms[1]);
      CHECK(norms[0] == norms[1]);  // sums of small whole numbers
    }
    CHECK(values_of(there) == values_of(here));
    CHECK(values_of(fused) == values_of(here));
    CHECK(there.optimizer->num_lost_updates() == here.optimizer->num_lost_updates());
    CHECK(fused.optimizer->num_updated_elements() == here.optimizer->num_updated_elements());
  }
}

TEST_CASE("cuda optimizer: gradients that are not contiguous are measured and taken as they are") {
  const auto run = [](const Device& device) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 5; ++i) {
      const Tensor p = zeros({3, 4}, DType::f32, device), grad = to_device(random_tensor({4, 3}, DType::f32, std::uint64_t(i)), device);
      set_requires_grad(p);
      set_grad(p, i % 2 == 1 ? view::transpose(grad, 0, 1) : view::reshape(grad, {3, 4}));
      parameters.push_back(p);
    }
    Sgd optimizer({{.parameters = parameters}});
    optimizer.step(1, 1 / global_grad_norm(parameters));
    std::vector<std::vector<double>> values;
    for (const Tensor& p : parameters) values.push_back(p.without_autograd().to_vector<double>());
    return values;
  };
  const auto here = run(Device::new_cpu()), there = run(Device::new_cuda());
  for (std::size_t i = 0; i < here.size(); ++i)
    for (std::size_t j = 0; j < here[i].size(); ++j) CHECK(there[i][j] == Approx(here[i][j]).epsilon(1e-6));
}

TEST_CASE("cuda fused update: stops at the CPU's parameter, with the same ones updated and counted") {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{31}, kNum - 1}) {
    const Course here = course(Device::new_cpu()), there = course(Device::new_cuda());
    for (const Course* c : {&here, &there}) CHECK(fused_step(*c, -1, true).empty());
    const std::string message = fused_step(here, bad, true);
    CHECK_THAT(message, Catch::Contains("is not finite, completed by"));
    CHECK(fused_step(there, bad, true) == message);
    CHECK(values_of(there) == values_of(here));
    for (const Course* c : {&here, &there}) CHECK(fused_step(*c, -1, true).empty());
    CHECK(values_of(there) == values_of(here));
  }
}

TEST_CASE("cuda fused update: without a stop it names the first gradient that is not finite, and updates all") {
  const Course here = course(Device::new_cpu()), there = course(Device::new_cuda());
  std::int64_t first_here = -1, first_there = -1;
  CHECK(fused_step(here, 20, false, &first_here).empty());
  CHECK(fused_step(there, 20, false, &first_there).empty());
  CHECK(first_here == 20);
  CHECK(first_there == 20);
  CHECK(there.optimizer->first_non_finite() == here.optimizer->first_non_finite());
}
