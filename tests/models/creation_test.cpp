// Models are created in the target precision: nothing but their own bytes is ever allocated.
#include <refrain/models/gpt2.h>
#include <refrain/models/vit.h>

#include <refrain/nn/norm.h>
#include <refrain/tests/support/catch.h>

#include <memory>

using namespace refrain;

namespace {

std::shared_ptr<Module> small_vit() {
  VitConfig config = vit_config("vit_ti_16");
  config.depth = 2;
  return std::make_shared<Vit>(config);
}

std::shared_ptr<Module> small_gpt2() {
  Gpt2Config config = gpt2_config("gpt2");
  config.width = 64, config.depth = 2, config.num_heads = 4, config.vocabulary = 5003;
  return std::make_shared<Gpt2>(config);
}

std::int64_t bytes_of(const Module& model) {
  std::int64_t bytes = 0;
  for (const NamedTensor& t : model.state_dict()) bytes += t.tensor.bytes();
  return bytes;
}

}  // namespace

TEST_CASE("creation: a model's peak is its own bytes in every precision, on real and planned devices", "[creation]") {
  for (const auto& make : {small_vit, small_gpt2}) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const Device& device : {Device::new_cpu(), Device::plan()}) {
        const CreationScope scope({.device = device, .dtype = dtype});
        const auto model = make();
        const std::int64_t own = model->num_parameters() * std::int64_t(size_of(dtype));
        CHECK(bytes_of(*model) == own);
        CHECK(device.peak_bytes() == own);
        CHECK(device.live_bytes(MemoryKind::parameter) == own);
      }
    }
  }
}

TEST_CASE("creation: 16-bit parameters are the f32 initial values rounded to nearest", "[creation]") {
  for (const auto& make : {small_vit, small_gpt2}) {
    const auto wide = [&] {
      const CreationScope scope({.seed = 3});
      return make();
    }();
    for (DType dtype : {DType::f16, DType::bf16}) {
      const CreationScope scope({.dtype = dtype, .seed = 3});
      const auto half = make();
      const auto expected = wide->named_parameters(), got = half->named_parameters();
      REQUIRE(expected.size() == got.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        std::vector<float> values = expected[i].tensor.to_vector<float>();
        for (float& v : values) v = dtype == DType::f16 ? float(f16(v)) : float(bf16(v));
        CHECK(got[i].tensor.dtype() == dtype);
        CHECK((got[i].tensor.to_vector<float>() == values));
      }
    }
  }
}

TEST_CASE("creation: batch norm's running statistics are f32 beside 16-bit parameters", "[creation]") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const CreationScope scope({.dtype = dtype});
    const BatchNorm2d norm(4);
    CHECK(norm.weight.dtype() == dtype);
    CHECK(norm.running_mean.dtype() == accumulator_dtype(dtype));
    CHECK(norm.running_var.dtype() == accumulator_dtype(dtype));
  }
}
