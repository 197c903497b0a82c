// The CUDA embedding against the CPU's, bit for bit: rows are moved, and sums have one order.
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/tests/cuda/row_tensors.h>

using namespace refrain;

namespace {

Tensor indices_of(const std::vector<std::int64_t>& values, DType dtype) {
  if (dtype == DType::i64) return from_values(values, {std::int64_t(values.size())});
  return from_values(std::vector<std::int32_t>(values.begin(), values.end()), {std::int64_t(values.size())});
}

std::vector<std::int64_t> random_indices(std::int64_t count, std::int64_t num_rows, std::uint64_t seed) {
  std::vector<std::int64_t> indices;
  for (double v : random_values(count, seed, 0, double(num_rows))) indices.push_back(std::min(std::int64_t(v), num_rows - 1));
  return indices;
}

Tensor backward(const Tensor& grad_out, const Tensor& indices, std::int64_t padding_idx, std::int64_t num_rows, bool is_cuda,
                std::int64_t margin = kAligned) {
  DeviceTensors on(margin);
  const DType dtype = grad_out.dtype();
  const Shape shape{num_rows, grad_out.dim(-1)};
  const Tensor out = is_cuda ? on.output(shape, dtype) : empty(shape, dtype);
  const Device device = is_cuda ? cuda_device() : Device::cpu();
  const std::int64_t num_order = EmbeddingBackward::num_order(device.target(), indices.numel(), num_rows, dtype);
  Tensor order;
  if (num_order != 0) order = poisoned({num_order}, DType::i64, device);
  launch(EmbeddingBackward{.grad_out = is_cuda ? on.put(grad_out) : grad_out, .indices = is_cuda ? on_cuda(indices) : indices,
                           .padding_idx = padding_idx, .out = out, .order = order});
  CHECK(on.are_intact());
  return on_cpu(out);
}

}  // namespace

TEST_CASE("cuda embedding: rows of any width, dtype and address are copied") {
  for (DType dtype : kFloating) {
    for (std::int64_t width : {0, 1, 2, 4, 31, 33, 200, 1000}) {
      for (std::int64_t count : {0, 17}) {
        INFO(dtype << " " << count << " rows of " << width);
        const Tensor weight = random_tensor({40, width}, dtype, 1);
        for (DType index : {DType::i64, DType::i32}) {
          if (index == DType::i32 && width != 33) continue;
          const Tensor indices = indices_of(random_indices(count, 40, 2), index), expected = empty({count, width}, dtype);
          launch(EmbeddingForward{.indices = indices, .weight = weight, .out = expected});
          for (std::int64_t margin : {kAligned, kMisaligned}) {
            DeviceTensors on(margin);
            const Tensor out = on.output({count, width}, dtype);
            launch(EmbeddingForward{.indices = on.put(indices), .weight = on.put(weight), .out = out});
            CHECK(on.are_intact());
            CHECK(num_different(on_cpu(out), expected) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("cuda embedding_backward: the CPU's bits for every dtype, width and address") {
  for (DType dtype : kFloating) {
    for (std::int64_t width : {0, 1, 31, 33, 200, 520}) {
      INFO(dtype << " " << width);
      const Tensor grad_out = random_tensor({90, width}, dtype, 1);
      for (DType index : {DType::i64, DType::i32}) {
        if (index == DType::i32 && width != 33) continue;
        const Tensor indices = indices_of(random_indices(90, 21, 2), index);
        for (std::int64_t padding_idx : {-1, 5}) {
          const Tensor expected = backward(grad_out, indices, padding_idx, 21, false);
          CHECK(num_different(backward(grad_out, indices, padding_idx, 21, true), expected) == 0);
          CHECK(num_different(backward(grad_out, indices, padding_idx, 21, true, kMisaligned), expected) == 0);
        }
      }
    }
  }
}

// Tables around the ends of one and two digits; fewer indices than rows and more; chunks that are full and one more;
// all indices alike, which is one long sum.
TEST_CASE("cuda embedding_backward: the CPU's bits for tables and batches of any size") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t num_rows : {1, 255, 256, 257, 66000}) {
      for (std::int64_t count : {0, 1, 33, 1024, 1025, 2500}) {
        if ((num_rows > 1000 && count != 1025) || ((count == 1024 || count == 2500) && num_rows != 257)) continue;
        INFO(dtype << " " << count << " of " << num_rows);
        const Tensor grad_out = random_tensor({count, 3}, dtype, 1),
                     indices = indices_of(random_indices(count, num_rows, 2), DType::i64);
        CHECK(num_different(backward(grad_out, indices, -1, num_rows, true), backward(grad_out, indices, -1, num_rows, false)) ==
              0);
        const Tensor same = indices_of(std::vector<std::int64_t>(std::size_t(count), num_rows - 1), DType::i64);
        if (num_rows <= 1000)
          CHECK(num_different(backward(grad_out, same, -1, num_rows, true), backward(grad_out, same, -1, num_rows, false)) == 0);
      }
    }
  }
}

TEST_CASE("cuda embedding_backward: every index may be the padding's, and the gradient may be unwanted") {
  const Tensor grad_out = random_tensor({40, 5}, DType::f32, 1),
               indices = indices_of(std::vector<std::int64_t>(40, 2), DType::i64);
  CHECK(backward(grad_out, indices, 2, 4, true).to_vector<double>() == std::vector<double>(20, 0.0));
  const Device cuda = cuda_device();
  launch(
      EmbeddingBackward{.grad_out = on_cuda(grad_out),
                        .indices = on_cuda(indices),
                        .padding_idx = -1,
                        .out = without_bytes({4, 5}, DType::f32, cuda),
                        .order = empty({EmbeddingBackward::num_order(DeviceKind::cuda, 40, 4, DType::f32)}, DType::i64, cuda)});
  launch(EmbeddingForward{.indices = on_cuda(indices), .weight = on_cuda(random_tensor({4, 5}, DType::f32, 1)),
                          .out = without_bytes({40, 5}, DType::f32, cuda)});
}

TEST_CASE("cuda embedding: an index outside the table is told when the device is next waited for, and its row is left alone") {
  const Device cuda = cuda_device();
  for (DType dtype : {DType::i64, DType::i32}) {
    for (std::int64_t bad : {-1, 4, 1 << 30}) {
      INFO(dtype << " " << bad);
      const Tensor weight = on_cuda(random_tensor({4, 3}, DType::f32, 1)), indices = on_cuda(indices_of({1, 2, bad, 3}, dtype));
      const Tensor out = zeros({4, 3}, DType::f32, cuda);
      launch(EmbeddingForward{.indices = indices, .weight = weight, .out = out});
      const std::string message = message_of([&] { (void)on_cpu(out); });
      CHECK_THAT(message, Catch::Contains(concat("index ", bad)) && Catch::Contains("position 2") && Catch::Contains("below 4"));
      const std::vector<double> values = out.to_vector<double>(), table = weight.to_vector<double>();
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK(values[c] == table[3 + c]);
        CHECK(values[6 + c] == 0);
        CHECK(values[9 + c] == table[9 + c]);
      }
      const Tensor grad_weight = zeros({4, 3}, DType::f32, cuda);
      launch(EmbeddingBackward{
          .grad_out = out,
          .indices = indices,
          .padding_idx = -1,
          .out = grad_weight,
          .order = empty({EmbeddingBackward::num_order(DeviceKind::cuda, 4, 4, DType::f32)}, DType::i64, cuda)});
      const std::string backward_message = message_of([&] { (void)on_cpu(grad_weight); });
      CHECK_THAT(backward_message, Catch::Contains(concat("index ", bad)) && Catch::Contains("position 2"));
      const std::vector<double> gradient = grad_weight.to_vector<double>();
      for (std::size_t c = 0; c < 3; ++c) CHECK(gradient[3 + c] == values[c]);
    }
  }
}
