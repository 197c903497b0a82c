#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/config.h>
#include <refrain/train/config_keys.h>

#include <set>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

Config from_file(const std::string& text, const std::vector<std::string>& flags = {}) {
  const ScratchDirectory scratch;
  return load_config(scratch.write("c.toml", text), flags);
}

std::string error_of(const std::string& text, const std::vector<std::string>& flags = {}) {
  try {
    from_file(text, flags);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

using Catch::Contains;

}  // namespace

TEST_CASE("config: values of every type are read from a file, flags override them") {
  const std::string text =
      "model = \"vit\"\nbatch = 32\nlr = 1\nflip = true\nmean = [0.5, 1]\nfreeze = [\"a.*\", 'b']\nmemory_limit = \"1.5MiB\"\n";
  const Config config = from_file(text);
  CHECK(config.batch == 32);
  CHECK(config.lr == 1.0);
  CHECK(config.flip);
  CHECK(config.mean == std::vector<double>{0.5, 1});
  CHECK(config.freeze == std::vector<std::string>{"a.*", "b"});
  CHECK(config.memory_limit.value == 1572864);
  const Config overridden = from_file(text, {"--batch", "8", "--lr=2e-3", "--no-flip", "--mean", "0.25,0.5", "--freeze=", "--memory-limit",
                                             "2GB", "--max-steps=7", "--run-dir", "here"});
  CHECK(overridden.batch == 8);
  CHECK(overridden.lr == 2e-3);
  CHECK(!overridden.flip);
  CHECK(overridden.mean == std::vector<double>{0.25, 0.5});
  CHECK(overridden.freeze.empty());
  CHECK(overridden.memory_limit.value == 2'000'000'000);
  CHECK(overridden.max_steps == 7);
  CHECK(overridden.run_dir == "here");
  CHECK(from_file("", {"--flip"}).flip);
  CHECK(!from_file("flip = true", {"--flip", "false"}).flip);
}

TEST_CASE("config: the resolved file reads back as the same configuration, awkward values included") {
  Config config;
  config.lr = 0.1 + 0.2;
  config.eps = 1e-300;
  config.weight_decay = 3;
  config.run_dir = "a \"quoted\" back\\slash\nand \x01 Ünicode";
  config.freeze = {"x,y", ""};
  config.betas = {0.5, 0};
  config.seed = std::int64_t{1} << 60;
  config.memory_limit = {12345678901};
  CHECK(from_file(to_toml(config)) == config);
  CHECK(from_file(to_toml(Config())) == Config());
}

TEST_CASE("config: every key is known once, as a key and as a flag, and has a default in its own range") {
  std::set<std::string> names;
  const Config config;
  detail::for_each_key(config, [](std::string_view) {}, [&](const detail::Key& key, const auto&) {
    CHECK(names.insert(std::string(key.name)).second);
    CHECK(config_help().find(key.name.substr(0, key.name.find('_'))) != std::string::npos);
  });
  CHECK(names.size() > 45);
}

TEST_CASE("config: an unknown key or flag is an error with file and line that suggests the nearest") {
  CHECK_THAT(error_of("batch = 1\n\nweight_deccay = 0.1"), Contains("c.toml:3: unknown key 'weight_deccay'; did you mean 'weight_decay'?"));
  CHECK_THAT(error_of("zzzzzzzz = 1"), Contains("c.toml:1: unknown key 'zzzzzzzz'") && !Contains("did you mean"));
  CHECK_THAT(error_of("", {"--bacth", "3"}), Contains("unknown flag '--bacth'; did you mean '--batch'?"));
  CHECK_THAT(error_of("", {"--maxsteps", "3"}), Contains("did you mean '--max-steps'?"));
  CHECK_THAT(error_of("[model]\nname = 1"), Contains("c.toml:1"));
  CHECK_THAT(error_of("[optimiser]\nname = 1"), Contains("c.toml:1: unexpected table [optimiser]"));
  CHECK_THAT(error_of("", {"batch", "3"}), Contains("unexpected argument 'batch'"));
}

TEST_CASE("config: a command line splits into flags with their values and the rest, wherever that stands") {
  const std::vector<std::string> line{"--lr", "0.1", "--flip", "c.toml", "--no-nesterov", "--seed=3", "--certify", "false", "more"};
  const Arguments split = split_arguments(line);
  CHECK(split.positional == std::vector<std::string>{"c.toml", "more"});
  CHECK(split.flags == std::vector<std::string>{"--lr", "0.1", "--flip", "--no-nesterov", "--seed=3", "--certify", "false"});
}

TEST_CASE("config: wrong types, values out of range and unknown choices say what was expected, and where") {
  CHECK_THAT(error_of("\nbatch = \"64\""), Contains("c.toml:2: batch: expected an integer, got string"));
  CHECK_THAT(error_of("batch = 1.5"), Contains("batch: expected an integer"));
  CHECK_THAT(error_of("lr = true"), Contains("lr: expected a number"));
  CHECK_THAT(error_of("mean = 0.5"), Contains("mean: expected a list of numbers"));
  CHECK_THAT(error_of("mean = [\"a\"]"), Contains("mean: expected a list of numbers, got a list"));
  CHECK_THAT(error_of("accumulate = 0"), Contains("accumulate: expected 1 to 1e+09, got 0"));
  CHECK_THAT(error_of("lr = nan"), Contains("lr: expected 0 to"));
  CHECK_THAT(error_of("dropout = 1"), Contains("dropout: expected 0 to"));
  CHECK_THAT(error_of("optimizer = \"adma\""), Contains("expected one of sgd, adam, adamw; got 'adma'; did you mean 'adam'?"));
  CHECK_THAT(error_of("batch = "), Contains("c.toml:1"));
  CHECK_THAT(error_of("batch = 1\nbatch = 2"), Contains("c.toml:2"));
  CHECK_THAT(error_of("", {"--batch", "x"}), Contains("--batch: expected an integer, got 'x'"));
  CHECK_THAT(error_of("", {"--batch"}), Contains("--batch: expected a value after it"));
  CHECK_THAT(error_of("", {"--flip=maybe"}), Contains("--flip: expected true or false"));
  CHECK_THAT(error_of("memory_limit = \"many\""), Contains("expected bytes"));
  CHECK_THAT(error_of("memory_limit = -1"), Contains("expected bytes"));
}

TEST_CASE("config: keys that contradict each other are refused") {
  CHECK_THAT(error_of("epochs = 0"), Contains("nothing to do"));
  CHECK_THAT(error_of("betas = [0.9]"), Contains("two numbers"));
  CHECK_THAT(error_of("nesterov = true"), Contains("momentum"));
  CHECK_THAT(error_of("width = 65"), Contains("divisor of width"));
  CHECK_THAT(error_of("model = \"gpt2\""), Contains("gpt2 reads text"));
  CHECK_THAT(error_of("checkpoint_keep = [\"matmul\"]"), Contains("selective"));
  CHECK_THAT(error_of("checkpoint = \"selective\"\ncheckpoint_keep = [\"attension\"]"), Contains("did you mean 'attention'?"));
  CHECK_THAT(error_of("lr = 0.1\nlr_floor = 0.2"), Contains("lr_floor"));
}

TEST_CASE("config: a preset gives the shape, keys and flags beside it override it") {
  const Config config = from_file("depth = 2\npreset = \"vit_l_16\"", {"--patch-size", "14"});
  CHECK(config.width == 1024);
  CHECK(config.depth == 2);
  CHECK(config.patch_size == 14);
  CHECK(from_file(to_toml(config)) == config);
  const Config gpt2 = from_file("preset = \"gpt2\"\ndata_path = \"x\"");
  CHECK(gpt2.model == "gpt2");
  CHECK(gpt2.vocab == 50257);
  CHECK_THAT(error_of("preset = \"vit_xl\""), Contains("expected one of vit_ti_14, vit_ti_16"));
}

TEST_CASE("config: an absent file is a DataError with its path") {
  CHECK_THROWS_AS(load_config("/absent/c.toml", {}), DataError);
}
