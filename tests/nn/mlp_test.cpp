// The MLP with and without chunks.
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/nn/mlp.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

Tensor run(const Mlp& mlp, const Tensor& x) {
  seed_random(5);
  const StageScope stage(1);
  return mlp(x);
}

}  // namespace

TEST_CASE("mlp: chunks change no bit of the result, in training and in evaluation") {
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    const CreationScope creation({.device = Device::cpu(), .seed = 1});
    Mlp layers(8, 32, {.gelu = form, .dropout = 0.3}), chunked(8, 32, {.gelu = form, .dropout = 0.3, .chunk_rows = 5});
    chunked.load_state_dict(layers.state_dict());
    const Tensor x = random_tensor({3, 7, 8}, DType::f32, 2);
    const Tensor trained = detach(run(layers, x));
    CHECK(same_bits(detach(run(chunked, x)), trained));
    layers.eval();
    chunked.eval();
    const Tensor evaluated = detach(run(layers, x));
    CHECK(same_bits(detach(run(chunked, x)), evaluated));
    CHECK(!same_bits(trained, evaluated));
  }
}

TEST_CASE("mlp: a negative chunk is refused") {
  CHECK(message_of([] { Mlp(4, 8, {.chunk_rows = -1}); }) == "Mlp: expected chunk_rows >= 0, got -1");
}
