// What small trainings are made of: a ViT and a decoder on made-up samples. Without Catch.
#pragma once

#include <refrain/core/random.h>
#include <refrain/core/view.h>
#include <refrain/data/samples.h>
#include <refrain/dist/sharded.h>
#include <refrain/nn/module.h>
#include <refrain/train/config.h>
#include <refrain/train/program.h>

#include <vector>

namespace refrain::testing {

// Sample i is a function of i: an image of 2 x 8 x 8, or 8 tokens of 11.
class MadeUpSamples : public Samples {
 public:
  MadeUpSamples(bool is_text, std::int64_t size) : is_text_(is_text), size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape input_shape() const override { return is_text_ ? Shape{8} : Shape{2, 8, 8}; }
  DType input_dtype() const override { return is_text_ ? DType::i64 : DType::f32; }
  Shape target_shape() const override { return is_text_ ? Shape{8} : Shape{}; }
  std::int64_t num_classes() const override { return is_text_ ? 11 : 5; }
  std::int64_t num_targets(std::int64_t) const override { return is_text_ ? 8 : 1; }
  void write(std::int64_t index, std::uint32_t, std::byte* input, std::int64_t* target) const override {
    const RandomKey key{.seed = 11, .step = std::uint32_t(index), .purpose = RandomPurpose::data};
    if (is_text_) {
      auto* tokens = reinterpret_cast<std::int64_t*>(input);
      for (int i = 0; i < 8; ++i) tokens[i] = std::int64_t(key.uniform(std::uint64_t(i)) * 11);
      for (int i = 0; i < 8; ++i) target[i] = i + 1 < 8 ? tokens[i + 1] : tokens[0];
      return;
    }
    auto* pixels = reinterpret_cast<float*>(input);
    for (int i = 0; i < 128; ++i) pixels[i] = 2 * key.uniform(std::uint64_t(i)) - 1;
    *target = std::int64_t(key.uniform(500) * 5);
  }

 private:
  bool is_text_;
  std::int64_t size_;
};

inline Config small_config(bool is_text) {
  Config config;
  config.model = is_text ? "gpt2" : "vit";
  config.data_format = is_text ? "text" : "idx";
  config.vocab = 11;
  config.context = 8;
  config.image_size = 8;
  config.patch_size = 4;
  config.channels = 2;
  config.num_classes = 5;
  config.width = 16;
  config.depth = 2;
  config.num_heads = 2;
  config.batch = 3;
  config.lr = 0.05;
  config.seed = 5;
  config.schedule = "constant";
  config.bucket_bytes.value = 2048;  // several buckets
  return config;
}

inline std::vector<std::vector<float>> weights_of(const Module& model) {
  std::vector<std::vector<float>> all;
  for (const NamedTensor& entry : model.named_parameters()) all.push_back(entry.tensor.to_vector<float>());
  return all;
}

// The whole of every parameter, on each rank of a replica.
inline std::vector<std::vector<float>> weights_of(Program& program) {
  Sharded* sharded = program.strategy->sharded();
  if (sharded == nullptr || !sharded->moves_parameters()) return weights_of(*program.model);
  std::vector<std::vector<float>> all;
  for (const NamedTensor& entry : program.model->named_parameters()) {
    const Sharded::Shard* shard = sharded->find(entry.name);
    all.push_back(sharded->gathered(*shard, shard->piece.without_autograd()).to_vector<float>());
  }
  return all;
}

}  // namespace refrain::testing
