// Everything a run is made of, one field a key. The same table of keys (config_keys.h) reads TOML files and flags, writes
// the resolved config.toml and prints the help, so a key exists in all four or in none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace refrain {

// A number of bytes; files and flags may say 800MiB or 1.5GB.
struct ByteCount {
  std::int64_t value = 0;
  friend bool operator==(const ByteCount&, const ByteCount&) = default;
};

struct Config {
  // model
  std::string model = "vit";
  std::string preset;
  std::int64_t image_size = 0, patch_size = 7, channels = 0, num_classes = 0;
  std::int64_t vocab = 256, context = 128;
  std::int64_t width = 64, depth = 4, num_heads = 4;
  double mlp_ratio = 4;
  double dropout = 0, attention_dropout = 0, stochastic_depth = 0;

  // data
  std::string data_format = "idx";
  std::string data_path = "/usr/share/datasets/fashion-mnist";
  std::vector<double> mean, std;
  std::int64_t crop_padding = 0;
  bool flip = false;
  double test_share = 0.1;

  // optimisation
  std::int64_t batch = 64, accumulate = 1, eval_batch = 0;
  std::int64_t epochs = 1, max_steps = 0;
  std::string optimizer = "sgd";
  double lr = 0.1, momentum = 0;
  bool nesterov = false;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0, clip_norm = 0, label_smoothing = 0;
  std::string schedule = "cosine";
  double warmup_epochs = 0;
  std::int64_t warmup_steps = 0;
  double lr_floor = 0;
  std::vector<std::string> freeze;

  // precision; "auto" means what the mode calls for (setup.h)
  std::string precision = "32-true";
  std::string rounding = "auto";
  bool master_weights = false;
  std::string optimizer_state = "parameter";
  std::string loss_scale = "auto";
  double loss_scale_init = 65536, loss_scale_growth = 2, loss_scale_backoff = 0.5;
  std::int64_t loss_scale_interval = 2000;
  double loss_scale_min = 0x1p-14, loss_scale_max = 0x1p24;
  std::string non_finite = "auto";

  // memory
  std::string update = "after";
  std::string accumulate_schedule = "ordinary";
  std::string checkpoint = "none";
  std::int64_t checkpoint_levels = 2;
  std::vector<std::string> checkpoint_keep, checkpoint_parts;
  ByteCount memory_budget;
  bool certify = false;
  std::int64_t loss_chunk = 0, mlp_chunk = 0;
  ByteCount memory_limit;
  std::string packing = "plan";
  std::int64_t timeline = 0;

  // ranks
  std::string strategy = "none";
  ByteCount bucket_bytes{std::int64_t{25} << 20};
  std::string gradient_compression = "none";
  std::int64_t local_steps = 8, local_warmup = 0;
  std::string local_state = "keep";
  double outer_lr = 1, outer_momentum = 0;
  std::string sharded = "full";
  std::int64_t shard_ranks = 0;
  std::string offload = "none";

  // run
  std::int64_t seed = 0;
  std::string device = "auto";
  std::int64_t threads = 0;
  bool cuda_graph = false;
  std::string run_dir;
  std::int64_t snapshot_every = 1000, keep_snapshots = 2, eval_every = 1, log_every = 20;

  friend bool operator==(const Config&, const Config&) = default;
};

// Reads a TOML file, then flags such as `--lr 0.1`, `--lr=0.1`, `--flip`, `--no-flip`, which override it; a preset comes
// before both. Unknown keys, wrong types and values out of range throw InvalidArgument saying where, what was expected
// and which key may have been meant; an unreadable file throws DataError. An empty path means no file.
Config load_config(const std::filesystem::path& path, std::span<const std::string> flags);

// A configuration with such flags over it, checked as a whole. A preset among them is noted, not applied.
Config with_flags(Config config, std::span<const std::string> flags);

// A command line taken apart: flags with their values, as load_config() takes them, and the rest. `--no-flip` and its like
// are known to stand alone.
struct Arguments {
  std::vector<std::string> positional, flags;
};
Arguments split_arguments(std::span<const std::string> arguments);

// A TOML file that load_config() turns into this very config: every key, each with its meaning.
std::string to_toml(const Config& config);

// A line for every key: flag, meaning, default and range.
std::string config_help();

// What spans several keys: throws InvalidArgument naming them.
void check_config(const Config& config);

// The known name nearest to `name` by edit distance, or "" when none is near.
std::string nearest_name(const std::string& name, std::span<const std::string> known);

}  // namespace refrain
