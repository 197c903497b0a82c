// Work gathered into CUDA graphs: what the same calls do without, whatever waits, copies and fails between them.
#include <refrain/core/cuda/backend.h>
#include <refrain/kernels/update/update.h>
#include <refrain/tests/cuda/layouts.h>

#include <cstring>
#include <optional>

using namespace refrain;

namespace {

// Runs `step` a few times, in scopes or not. The first step on a device is never captured.
struct Result {
  std::vector<double> seen;
  CudaGraphCounts counts;
};
template <class Step>
Result run_steps(int num_steps, bool has_graphs, Step&& step) {
  const Device device = Device::new_cuda();
  Result result;
  auto state = step(device);
  for (int i = 0; i < num_steps; ++i) {
    std::optional<CudaGraphScope> scope;
    if (has_graphs) scope.emplace(device);
    state(i, result.seen);
    if (scope) scope->finish();
  }
  result.counts = cuda_graph_counts(device);
  return result;
}
template <class Step>
CudaGraphCounts check_alike(int num_steps, Step&& step) {
  const Result plain = run_steps(num_steps, false, step), graphs = run_steps(num_steps, true, step);
  CHECK(graphs.seen == plain.seen);
  CHECK(plain.counts.launches == 0);
  return graphs.counts;
}

void scale(const Tensor& t, double factor) { launch(ScaleInPlace{.factor = factor, .out = t}); }

}  // namespace

TEST_CASE("cuda graphs: arguments and addresses are those of each step, and one topology is made executable once") {
  const CudaGraphCounts counts = check_alike(6, [](const Device& device) {
    return [t = full({1000}, 1, DType::f32, device), keep = std::vector<Tensor>(), device](int i, std::vector<double>& seen) mutable {
      scale(t, 1 + i);
      keep.push_back(full({3}, i, DType::f32, device));  // another address each time
      scale(keep.back(), 2);
      copy_values(view::slice(t, 0, 0, 3), keep.back());
      scale(t, 0.5);
      seen.push_back(t.to_vector<double>()[2]);
      scale(t, 3);
      seen.push_back(t.to_vector<double>()[999]);
    };
  });
  CHECK(counts.launches == 5 * 2);
  CHECK(counts.instantiations == 2);
  CHECK(counts.nodes == 5 * (5 + 1));
}

TEST_CASE("cuda graphs: a section of another topology gets a graph of its own, and the old ones stay") {
  const CudaGraphCounts counts = check_alike(9, [](const Device& device) {
    return [t = full({64}, 1, DType::f32, device)](int i, std::vector<double>& seen) {
      for (int n = 0; n < 1 + i % 3; ++n) scale(t, 1.5);
      launch(ZeroInPlace{.out = view::slice(t, 0, 0, 1)});
      if (i % 2 == 0) scale(t, 2);
      seen.push_back(t.to_vector<double>()[5]);
    };
  });
  CHECK(counts.launches == 8);
  CHECK(counts.instantiations <= 6);
}

TEST_CASE("cuda graphs: copies from the host and an upload lie where the program has them") {
  check_alike(4, [](const Device& device) {
    const auto slot = full({100}, 0, DType::f32, device);
    return [slot, device, upload = std::shared_ptr(detail::new_upload(device, slot.bytes()))](int i, std::vector<double>& seen) {
      const Tensor sum = full({100}, 1, DType::f32, device);
      for (int n = 0; n < 3; ++n) {
        upload->release();
        const std::vector<float> values(100, float(10 * i + n));
        std::memcpy(upload->host(), values.data(), 400);
        upload->start(slot.address(), slot.bytes());
        upload->finish();
        scale(slot, 2);
        copy_values(sum, slot);
        const Tensor given = to_device(tensor_of({double(i), double(n)}, {2}, DType::f32), device);  // through staging
        copy_values(view::slice(sum, 0, 0, 2), given);
        scale(sum, 0.5);
      }
      const std::vector<double> values = sum.to_vector<double>();
      seen.insert(seen.end(), values.begin(), values.end());
      device.synchronize();
    };
  });
}

TEST_CASE("cuda graphs: what was given before an exception has taken place, and the next step goes on") {
  const auto seen_with = [](bool has_graphs) {
    const Device device = Device::new_cuda();
    const Tensor t = full({8}, 1, DType::f32, device);
    std::vector<double> seen;
    for (int i = 0; i < 4; ++i) {
      try {
        std::optional<CudaGraphScope> scope;
        if (has_graphs) scope.emplace(device);
        scale(t, 2);
        if (i == 2) scale(t, 3), fail<NonFinite>("stop");
        scale(t, 5);
      } catch (const NonFinite&) {
      }
      seen.push_back(t.to_vector<double>()[7]);
    }
    return seen;
  };
  CHECK(seen_with(true) == seen_with(false));
}

TEST_CASE("cuda graphs: memory that does not suffice is an exception as always, in a scope and after it") {
  const Device device = Device::new_cuda();
  const Tensor t = full({64}, 1, DType::f32, device);
  device.set_memory_limit(device.reserved_bytes() + (8 << 20));
  for (int i = 0; i < 3; ++i) {
    const CudaGraphScope scope(device);
    scale(t, 2);
    CHECK_THROWS_AS(empty({64 << 20}, DType::f32, device), OutOfMemory);
    const Tensor more = full({1 << 20}, 1, DType::f32, device);  // the arena grows while work is captured
    scale(more, 2);
    CHECK(more.to_vector<double>()[12345] == 2);
  }
  CHECK(t.to_vector<double>()[0] == 8);
}

TEST_CASE("cuda graphs: a scope inside another one, and one for another device, change nothing") {
  const Device device = Device::new_cuda();
  const Tensor t = full({4}, 1, DType::f32, device);
  for (int i = 0; i < 3; ++i) {
    const CudaGraphScope outer(device);
    scale(t, 2);
    {
      CudaGraphScope inner(device), host(Device::cpu()), plan(Device::plan(DeviceKind::cuda));
      scale(t, 2);
      inner.finish();
    }
    scale(t, 2);
  }
  CHECK(t.to_vector<double>()[0] == 512);
  CHECK(cuda_graph_counts(device).launches == 2);
  CHECK(cuda_graph_counts(Device::cpu()).launches == 0);
}
