// What spans several keys of a configuration.
#include <refrain/autograd/precision.h>
#include <refrain/core/check.h>
#include <refrain/train/budget/block_parts.h>
#include <refrain/train/config.h>
#include <refrain/train/device_choice.h>

#include <algorithm>
#include <cmath>

namespace refrain {

namespace {

// An op that regions may keep: a name that means nothing would keep nothing without a word.
void check_keep(std::string_view key, const std::string& op) {
  std::vector<std::string> known{"matmul", "attention"};
  for (const OpRule& rule : precision_table()) known.emplace_back(rule.op);
  if (std::find(known.begin(), known.end(), op) != known.end()) return;
  const std::string nearest = nearest_name(op, known);
  fail(key, ": there is no op '", op, "'", nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

}  // namespace

void check_config(const Config& config) {
  check_device_word(config.device);
  check(config.epochs > 0 || config.max_steps > 0, "epochs and max_steps are both 0: there is nothing to do");
  check(config.betas.size() == 2, "betas: expected two numbers, got ", config.betas.size());
  check(!config.nesterov || config.momentum > 0, "nesterov: needs a momentum above 0");
  check(config.lr_floor <= config.lr, "lr_floor: expected at most lr = ", config.lr, ", got ", config.lr_floor);
  check(config.width % config.num_heads == 0, "num_heads: expected a divisor of width = ", config.width, ", got ", config.num_heads);
  check((config.model == "gpt2") == (config.data_format == "text"),
        "data_format: ", config.model == "gpt2" ? "gpt2 reads text" : "vit reads images", ", got ", config.data_format);
  for (const std::string& op : config.checkpoint_keep) check_keep("checkpoint_keep", op);
  for (const std::string& line : config.checkpoint_parts)
    for (const std::string& op : parse_block_part(line).keep) check_keep("checkpoint_parts", op);
  check(config.checkpoint_keep.empty() || config.checkpoint == "selective", "checkpoint_keep: needs checkpoint = \"selective\", got \"",
        config.checkpoint, "\"");
  check(config.checkpoint_parts.empty() || config.checkpoint == "custom", "checkpoint_parts: needs checkpoint = \"custom\", got \"",
        config.checkpoint, "\"");
  check((config.memory_budget.value > 0) == (config.checkpoint == "budget"),
        "memory_budget and checkpoint = \"budget\": each needs the other, got ", config.memory_budget.value, " bytes and \"",
        config.checkpoint, "\"");
  const bool has_bounds = config.loss_scale != "static" && config.loss_scale != "off";
  check(!has_bounds || (config.loss_scale_min <= config.loss_scale_init && config.loss_scale_init <= config.loss_scale_max),
        "loss_scale_init: expected between ", config.loss_scale_min, " and ", config.loss_scale_max, ", got ", config.loss_scale_init);
  if (config.update == "fused" && config.accumulate_schedule == "ordinary") {
    constexpr const char* kReason =
        ": needs all gradients before the first update, which update = \"fused\" does not keep; "
        "with accumulate_schedule = \"layerwise\" it can be had";
    check(config.clip_norm == 0, "clip_norm", kReason);
    check(config.loss_scale != "dynamic" && !(config.loss_scale == "auto" && config.precision == "16-mixed"), "loss_scale: a dynamic scale",
          kReason);
    check(config.non_finite != "skip", "non_finite: skip", kReason);
  }
  check(config.sharded == "full" || config.strategy == "sharded", "sharded: \"", config.sharded, "\" needs strategy = \"sharded\", got \"",
        config.strategy, "\"");
  check(config.shard_ranks == 0 || config.strategy == "sharded" || config.strategy == "local_sgd",
        "shard_ranks: needs strategy = \"sharded\" or \"local_sgd\", got \"", config.strategy, "\"");
  check(config.offload == "none" || config.offload == "boundaries" || config.sharded == "full", "offload: parameters that are whole on every rank (sharded = \"", config.sharded,
        "\") cannot live in host memory");
  check(!config.cuda_graph || (config.offload == "none" && config.strategy != "sharded" && config.shard_ranks <= 1),
        "cuda_graph: a graph cannot hold the fetching of parameters, which strategy = \"sharded\", shard_ranks and offload bring");
  if (config.gradient_compression != "none") {
    check(config.strategy == "ddp", "gradient_compression: needs strategy = \"ddp\", whose ranks exchange gradients, got \"", config.strategy,
          "\"");
    check(config.precision != "16-true" && config.precision != "bf16-true", "gradient_compression: with precision = \"", config.precision,
          "\" gradients have 16 bits already");
    check(config.offload == "none" || config.offload == "boundaries", "gradient_compression: with offload = \"", config.offload,
          "\" gradients are reduced piece by piece where the updates are, without buckets");
  }
  const double hidden = config.mlp_ratio * double(config.width);
  check(hidden == std::floor(hidden), "mlp_ratio: ", config.mlp_ratio, " times width ", config.width, " is no whole number");
}

}  // namespace refrain
