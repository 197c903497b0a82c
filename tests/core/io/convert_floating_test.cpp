#include <refrain/core/io/convert_floating.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/random.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <bit>
#include <cmath>
#include <vector>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

template <class To, class From>
std::vector<To> converted(const std::vector<From>& from) {
  std::vector<To> to(from.size());
  convert_floating(dtype_of<From>, reinterpret_cast<const std::byte*>(from.data()), dtype_of<To>, reinterpret_cast<std::byte*>(to.data()),
                   std::int64_t(from.size()));
  return to;
}

template <class S>
std::vector<S> all_values() {
  std::vector<S> values(0x10000);
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) values[bits].bits = std::uint16_t(bits);
  return values;
}

template <class S, class Wide>
void check_round_trip() {
  const std::vector<S> values = all_values<S>(), back = converted<S>(converted<Wide>(values));
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    wrong += std::isnan(float(values[i])) ? !std::isnan(float(back[i])) : back[i].bits != values[i].bits;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("convert_floating: every 16-bit value is exact in a wider type and comes back") {
  check_round_trip<f16, float>();
  check_round_trip<f16, double>();
  check_round_trip<bf16, float>();
  check_round_trip<bf16, double>();
}

TEST_CASE("convert_floating: narrowing rounds once, to nearest") {
  // Just above a tie in f64 that a first rounding to f32 would make a tie, and f16's even neighbour below.
  CHECK(float(converted<f16>(std::vector<double>{1 + 0x1p-11 + 0x1p-40})[0]) == 1 + 0x1p-10f);
  CHECK(float(converted<f16>(std::vector<double>{1 + 0x1p-11})[0]) == 1.0f);
  CHECK(float(converted<f16>(std::vector<double>{1 + 0x3p-11 - 0x1p-40})[0]) == 1 + 0x1p-10f);
  CHECK(float(converted<bf16>(std::vector<double>{1 + 0x1p-8 + 0x1p-40})[0]) == 1 + 0x1p-7f);
  CHECK(float(converted<f16>(std::vector<float>{65519.0f})[0]) == 65504.0f);
  CHECK(float(converted<f16>(std::vector<float>{65520.0f})[0]) == HUGE_VALF);
  CHECK(float(converted<f16>(std::vector<double>{-1e300})[0]) == -HUGE_VALF);
  CHECK(float(converted<f16>(std::vector<float>{0x1.8p-24f})[0]) == 0x1p-23f);
  CHECK(converted<float>(std::vector<double>{0.1})[0] == 0.1f);
  CHECK(std::isnan(float(converted<bf16>(std::vector<double>{std::nan("")})[0])));
}

TEST_CASE("safetensors: a reader that converts fills any floating dtype from any other, block by block") {
  const ScratchDirectory scratch;
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  const RandomKey key{.seed = 4, .purpose = RandomPurpose::user};
  for (std::int64_t n : {0, 1, 33, 8192, 16385, 70001}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back((double(key.uniform(std::uint64_t(i))) - 0.5) * 1.37);
    for (DType from : dtypes) {
      const Tensor source = empty({n}, from);
      convert_floating(DType::f64, reinterpret_cast<const std::byte*>(values.data()), from, source.address(), n);
      const std::string name(name_of(from));
      write_safetensors(scratch / (name + std::to_string(n)), {{"before", full({3}, 7, from)}, {"w", source}, {"x", full({3}, 7, from)}});
      const SafetensorsFile file(scratch / (name + std::to_string(n)));
      for (DType to : dtypes) {
        const Tensor target = empty({n}, to), expected = empty({n}, to);
        convert_floating(from, source.address(), to, expected.address(), n);
        file.read_into("w", target, OtherPrecision::convert);
        CHECK(target.to_vector<double>() == expected.to_vector<double>());
      }
    }
  }
}

TEST_CASE("safetensors: conversion is asked for, and never of integers or shapes") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"w", full({2}, 1, DType::f32)}, {"i", full({2}, 1, DType::i32)}});
  const SafetensorsFile file(scratch / "a");
  CHECK_THROWS_AS(file.read_into("w", empty({2}, DType::bf16)), DataError);
  CHECK_THROWS_AS(file.read_into("w", empty({3}, DType::bf16), OtherPrecision::convert), DataError);
  CHECK_THROWS_AS(file.read_into("w", empty({2}, DType::i32), OtherPrecision::convert), DataError);
  CHECK_THROWS_AS(file.read_into("i", empty({2}, DType::f32), OtherPrecision::convert), DataError);
}

TEST_CASE("safetensors: converting takes no memory of the device beside the tensor") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"w", full({1000, 1000}, 0.1, DType::f32)}});
  const SafetensorsFile file(scratch / "a");
  const Device device = Device::new_cpu();
  const Tensor target = empty({1000, 1000}, DType::bf16, device);
  file.read_into("w", target, OtherPrecision::convert);
  CHECK(device.peak_bytes() == target.bytes());
  CHECK(target.to_vector<float>() == std::vector<float>(1000000, float(bf16(0.1f))));
  file.read_into("w", empty({1000, 1000}, DType::f16, Device::plan()), OtherPrecision::convert);
}
