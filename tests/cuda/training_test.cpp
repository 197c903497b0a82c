// Whole trainings on the device: against PyTorch's losses and the CPU's, bit against bit between schedules, policies and resumes,
// and memory against the plan.
#include <refrain/autograd/random.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/train/check_plan.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/tests/train/training_losses.h>
#include <refrain/train/program.h>
#include <refrain/train/setup.h>

#include <iterator>
#include <sstream>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr int kFewSteps = 12;  // of adamw, whose first steps are the ones that differ

using Bytes = std::vector<std::vector<std::byte>>;

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> buffer;
  const std::span<const std::byte> bytes = host_bytes(contiguous_values(t.without_autograd()), buffer);
  return {bytes.begin(), bytes.end()};
}

// A small model with dropout in a precision, and one batch.
struct Subject {
  Precision precision;
  std::shared_ptr<ChainModel> model;
  Tensor input, targets;
};

Subject subject(bool is_vit, Precision precision, double dropout, const Device& device) {
  const PrecisionScope precision_scope(precision);
  const CreationScope scope({.device = device, .seed = 5});
  if (is_vit) {
    return {precision,
            std::make_shared<Vit>(VitConfig{.image_height = 8, .image_width = 8, .channels = 2, .patch = 4, .width = 16, .depth = 4, .num_heads = 2,
                                            .mlp_ratio = 2, .num_classes = 5, .dropout = dropout, .attention_dropout = dropout,
                                            .stochastic_depth = dropout}),
            to_device(fixture::values("images", {3, 2, 8, 8}), device), to_device(fixture::integers("labels", {3}, 5), device)};
  }
  return {precision,
          std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 11, .context = 8, .width = 16, .depth = 4, .num_heads = 2, .mlp_ratio = 2,
                                            .dropout = dropout, .attention_dropout = dropout}),
          to_device(fixture::integers("tokens", {3, 7}, 11), device), to_device(fixture::integers("targets", {3, 7}, 11), device)};
}

// Loss and every gradient, always with the same random numbers.
std::vector<Tensor> loss_and_gradients(const Subject& s, const CheckpointPolicy& policy) {
  seed_random(11);
  set_random_position(4, 2);
  const Tensor loss = [&] {
    const PrecisionScope scope(s.precision);
    return cross_entropy((*s.model)(s.input, policy), s.targets, {});
  }();
  std::vector<Tensor> values{loss.without_autograd()};
  backward(loss);
  for (const Tensor& t : s.model->parameters()) {
    values.push_back(grad_of(t));
    clear_grad(t);
  }
  return values;
}

Bytes bits(const std::vector<Tensor>& tensors) {
  Bytes all;
  for (const Tensor& t : tensors) all.push_back(bytes_of(t));
  return all;
}

// A configuration that trains `steps` steps on the device in a second or so.
Config tiny(const ScratchDirectory& scratch, bool is_vit = true) {
  Config config = is_vit ? small_vit(scratch) : small_gpt2(scratch);
  config.depth = 2;
  config.epochs = 0;
  config.max_steps = 5;
  config.eval_every = 0;
  config.eval_batch = 10;
  config.num_classes = is_vit ? 2 : 0;
  config.log_every = 1;
  config.device = "cuda";
  return config;
}

struct Course {
  std::vector<double> losses;
  std::int64_t skipped = 0;
  Evaluation test;
  std::string weights;
};

Course train(const ScratchDirectory& scratch, Config config, const std::string& name, const Device& device) {
  config.run_dir = scratch / name;
  config.device = device_word(device);
  Course course;
  const RunHooks hooks{.on_step = [&](const Progress& p) {
    course.losses.push_back(p.loss);
    course.skipped = p.skipped_steps;
  }};
  course.test = run_training(config, {.device = device}, hooks).test;
  course.weights = read_text_file(scratch / name / "snapshots" / concat("step-", config.max_steps) / "model.safetensors");
  return course;
}

void check_close(const Course& a, const Course& b, double tolerance) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(tolerance));
}

}  // namespace

TEST_CASE("cuda training: a small vit's losses with sgd equal PyTorch's", "[training]") { check_losses("vit_sgd", make_vit, vit_batch, {}, cuda_device()); }

TEST_CASE("cuda training: a small vit's losses with adamw, checkpointed, equal PyTorch's", "[training]") {
  check_losses("vit_adamw", make_vit, vit_batch, {.kind = CheckpointKind::block}, cuda_device(), kFewSteps);
}

TEST_CASE("cuda training: a small decoder's losses with adamw equal PyTorch's", "[training]") {
  check_losses("gpt2_adamw", make_gpt2, gpt2_batch, {}, cuda_device(), kFewSteps);
}

TEST_CASE("cuda training: checkpointed gradients are bitwise equal to plain ones, with dropout, in every precision", "[training]") {
  for (const bool is_vit : {true, false}) {
    for (const Precision precision : {Precision::f32_true, Precision::f16_mixed, Precision::bf16_true}) {
      INFO(name_of(precision) << (is_vit ? " vit" : " gpt2"));
      const Subject s = subject(is_vit, precision, 0.2, cuda_device());
      const Bytes plain = bits(loss_and_gradients(s, {}));
      CHECK(bits(loss_and_gradients(s, {})) == plain);
      CHECK(bits(loss_and_gradients(s, {.kind = CheckpointKind::block})) == plain);
      CHECK(bits(loss_and_gradients(s, {.kind = CheckpointKind::nested})) == plain);
      CHECK(bits(loss_and_gradients(s, {.kind = CheckpointKind::selective, .keep = {"attention"}})) == plain);
      if (is_vit) CHECK(bits(loss_and_gradients(s, {.kind = CheckpointKind::block, .certify = true})) == plain);
    }
  }
}

TEST_CASE("cuda training: gradients are the CPU's up to rounding, dropout included", "[training]") {
  for (const bool is_vit : {true, false}) {
    for (const auto& [precision, bound] : {std::pair(Precision::f32_true, 1e-5), std::pair(Precision::bf16_mixed, 0.05)}) {
      INFO(name_of(precision) << (is_vit ? " vit" : " gpt2"));
      const std::vector<Tensor> there = loss_and_gradients(subject(is_vit, precision, 0.2, cuda_device()), {});
      const std::vector<Tensor> here = loss_and_gradients(subject(is_vit, precision, 0.2, Device::cpu()), {});
      REQUIRE(there.size() == here.size());
      double norm = 0, difference = 0;
      for (std::size_t i = 0; i < there.size(); ++i) {
        const std::vector<double> a = there[i].to_vector<double>(), b = here[i].to_vector<double>();
        for (std::size_t j = 0; j < a.size(); ++j) norm += b[j] * b[j], difference += (a[j] - b[j]) * (a[j] - b[j]);
      }
      CHECK(std::sqrt(difference / norm) < bound);
    }
  }
}

TEST_CASE("cuda training: runs are the CPU's up to rounding, with sgd and adamw, image and text models", "[training]") {
  const ScratchDirectory scratch;
  for (const bool is_vit : {true, false}) {
    for (const std::string optimizer : {"sgd", "adamw"}) {
      Config config = tiny(scratch, is_vit);
      config.optimizer = optimizer;
      if (optimizer == "adamw") config.lr = 1e-3;
      config.momentum = optimizer == "sgd" ? 0.9 : 0;
      config.clip_norm = 1;
      const std::string name = concat(is_vit ? "vit-" : "gpt2-", optimizer);
      const Course there = train(scratch, config, name + "-cuda", Device::new_cuda());
      const Course here = train(scratch, config, name + "-cpu", Device::new_cpu());
      check_close(there, here, 2e-4);
      CHECK(there.test.loss == Approx(here.test.loss).epsilon(2e-4));
    }
  }
}

TEST_CASE("cuda training: fused, layerwise and accumulated steps give the ordinary steps' bits", "[training]") {
  const ScratchDirectory scratch;
  Config config = tiny(scratch);
  config.batch = 4;
  config.accumulate = 3;
  config.dropout = 0.1;
  config.max_steps = 3;
  const Course ordinary = train(scratch, config, "ordinary", Device::new_cuda());
  config.accumulate_schedule = "layerwise";
  const Course layerwise = train(scratch, config, "layerwise", Device::new_cuda());
  CHECK(layerwise.losses == ordinary.losses);
  CHECK(layerwise.weights == ordinary.weights);
  config.update = "fused";
  config.checkpoint = "block";
  const Course fused = train(scratch, config, "fused", Device::new_cuda());
  CHECK(fused.losses == ordinary.losses);
  CHECK(fused.weights == ordinary.weights);
  config.loss_chunk = 3;
  config.mlp_chunk = 5;
  config.certify = true;
  check_close(train(scratch, config, "chunked", Device::new_cuda()), ordinary, 1e-5);
}

TEST_CASE("cuda training: a 16-mixed run that overflows skips the CPU's steps and trains on", "[training]") {
  const ScratchDirectory scratch;
  Config config = tiny(scratch);
  config.precision = "16-mixed";
  config.loss_scale_init = 0x1p24;
  const Course there = train(scratch, config, "cuda", Device::new_cuda()), here = train(scratch, config, "cpu", Device::new_cpu());
  CHECK(there.skipped > 0);
  CHECK(there.skipped == here.skipped);
  check_close(there, here, 5e-3);
}

TEST_CASE("cuda training: bf16-true with stochastic rounding stays near the CPU's, and repeats its bits", "[training]") {
  const ScratchDirectory scratch;
  Config config = tiny(scratch);
  config.precision = "bf16-true";
  config.optimizer = "adamw";
  config.lr = 1e-3;
  const Course once = train(scratch, config, "once", Device::new_cuda()), again = train(scratch, config, "again", Device::new_cuda());
  CHECK(once.losses == again.losses);
  CHECK(once.weights == again.weights);
  check_close(once, train(scratch, config, "cpu", Device::new_cpu()), 0.03);
}

TEST_CASE("cuda training: an interrupted run continues with the same bits, there and on the other device", "[training]") {
  const ScratchDirectory scratch;
  Config config = tiny(scratch);
  config.optimizer = "adamw";
  config.lr = 1e-3;
  config.dropout = 0.1;
  const Course whole = train(scratch, config, "whole", Device::new_cuda());
  const auto in_two = [&](const std::string& name, const Device& first, const Device& second) {
    config.run_dir = scratch / name;
    int steps = 0;
    config.device = device_word(first);
    const RunHooks stops{.on_step = [&](const Progress&) { ++steps; }, .should_stop = [&] { return steps == 2; }};
    CHECK(!run_training(config, {.device = first}, stops).is_finished);
    config.device = device_word(second);
    CHECK(run_training(config, {.resume = true, .device = second}).is_finished);
    return read_text_file(scratch / name / "snapshots/step-5/model.safetensors");
  };
  CHECK(in_two("parts", Device::new_cuda(), Device::new_cuda()) == whole.weights);
  CHECK(in_two("cuda-cpu", Device::new_cuda(), Device::new_cpu()).size() == whole.weights.size());
  CHECK(in_two("cpu-cuda", Device::new_cpu(), Device::new_cuda()).size() == whole.weights.size());
  config.run_dir = scratch / "parts";
  config.device = "cpu";
  const double here = run_evaluation(config, {.device = Device::new_cpu()}).loss;
  CHECK(run_evaluation(config, {.device = Device::new_cuda()}).loss == Approx(here).epsilon(1e-5));
}

TEST_CASE("cuda training: the plan for CUDA is the run to the byte, over pairs of options", "[training]") {
  const ScratchDirectory scratch;
  const auto check_with = [&](bool is_vit, const std::string& flags) {
    std::istringstream in(flags);
    const std::vector<std::string> words(std::istream_iterator<std::string>(in), {});
    check_plan(scratch, with_flags(tiny(scratch, is_vit), words), Device::new_cuda());
  };
  check_with(true, "--max-steps 2");
  check_with(true, "--max-steps 2 --optimizer adamw --checkpoint block --dropout 0.1");
  check_with(true, "--max-steps 2 --precision 16-mixed --loss-scale-init 1024 --accumulate 2 --packing online");
  check_with(true, "--max-steps 2 --precision bf16-mixed --checkpoint nested --update fused --accumulate-schedule layerwise --accumulate 2 "
                   "--non-finite stop");
  check_with(true, "--max-steps 2 --precision bf16-true --update fused --checkpoint block --stochastic-depth 0.1 --packing online");
  check_with(true, "--max-steps 2 --loss-chunk 3 --clip-norm 1 --certify --checkpoint block --attention-dropout 0.1");
  check_with(false, "--max-steps 2");
  check_with(false, "--max-steps 2 --precision bf16-mixed --optimizer adamw --mlp-chunk 5 --dropout 0.1");
  check_with(false, "--max-steps 2 --precision bf16-true --accumulate-schedule layerwise --accumulate 2 --checkpoint nested --loss-chunk 3");
  check_with(false, "--max-steps 2 --precision 16-mixed --loss-scale-init 1024 --clip-norm 1 --checkpoint block --attention-dropout 0.1 "
                    "--packing online");
}

TEST_CASE("cuda training: out of memory is an exception, a fit is named, and the device trains on", "[training]") {
  const ScratchDirectory scratch;
  const Device device = Device::new_cuda();
  Config config = tiny(scratch);
  config.max_steps = 1;
  const Plan plan = plan_training(config);
  config.memory_limit = {plan.reserved_bytes - 1};
  config.run_dir = scratch / "small";
  CHECK_THROWS_WITH(run_training(config, {.device = device}), Catch::Contains("out of memory on cuda:0") && Catch::Contains("memory_limit"));
  CHECK(device.live_bytes() == 0);
  config.memory_limit = {plan.reserved_bytes};
  config.run_dir = scratch / "enough";
  CHECK(run_training(config, {.device = device}).is_finished);
  CHECK(device.reserved_bytes() == plan.reserved_bytes);
}

TEST_CASE("cuda training: a run says where it ran and what lies outside the arena", "[training]") {
  const ScratchDirectory scratch;
  Config config = tiny(scratch);
  config.max_steps = 1;
  config.run_dir = scratch / "run";
  config.device = "auto";
  std::vector<std::string> notes;
  run_training(config, {.device = Device::new_cuda()}, {.on_note = [&](const std::string& text) { notes.push_back(text); }});
  REQUIRE(!notes.empty());
  CHECK_THAT(notes[0], Catch::StartsWith("cuda: ") && Catch::Contains("compute capability"));
  const nlohmann::json summary = nlohmann::json::parse(read_text_file(scratch / "run/summary.json"));
  CHECK(summary["device"] == "cuda");
  CHECK(summary["outside_arena_bytes"]["pinned"].get<std::int64_t>() > 0);
  CHECK_THAT(read_text_file(scratch / "run/report.txt"), Catch::Contains("pinned for copies"));
  CHECK_THAT(read_text_file(scratch / "run/config.toml"), Catch::Contains("device = \"auto\""));
}
