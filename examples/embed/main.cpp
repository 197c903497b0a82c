// A network of one's own whose hidden part is a checkpoint region, trained with plain SGD to fit y = sin(3x).
#include <refrain/autograd/all.h>
#include <refrain/nn/all.h>
#include <refrain/optim/all.h>

#include <cmath>
#include <cstdio>

using namespace refrain;

struct Net : Module {
  std::shared_ptr<Linear> in = add<Linear>("in", 1, 64), mid = add<Linear>("mid", 64, 64), out = add<Linear>("out", 64, 1);
};

int main() {
  const Net net;
  Sgd optimizer(make_groups(net.named_parameters(), 0));
  std::vector<float> xs, ys;
  for (int i = 0; i < 256; ++i) {
    xs.push_back(float(i) / 128 - 1);
    ys.push_back(std::sin(3 * xs.back()));
  }
  const Tensor x = from_values(xs, {256, 1}), y = from_values(ys, {256, 1});

  double loss_value = 0;
  for (int step = 0; step < 2000; ++step) {
    const Tensor h = checkpoint([&](const Tensor& v) { return tanh((*net.mid)(tanh((*net.in)(v)))); }, x);
    const Tensor loss = mse_loss((*net.out)(h), y);
    loss_value = loss.item();
    backward(loss);
    optimizer.step(0.1);
    optimizer.zero_grad();
  }
  std::printf("loss %.5f, peak %lld bytes of tensors\n", loss_value, static_cast<long long>(Device::cpu().peak_bytes()));
  return loss_value < 0.01 ? 0 : 1;
}
