// The table of keys: the only place that lists them.
#pragma once

#include <refrain/train/config.h>

#include <limits>
#include <string_view>

namespace refrain::detail {

struct Key {
  std::string_view name, meaning;
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::string_view choices = {};  // separated by '|'
};

inline constexpr double kMany = 1e12;
inline constexpr double kBelow1 = 0.999999;

// Calls f(key, field) for every key of a Config or const Config; section(title) before the keys of a section.
template <class C, class Section, class F>
void for_each_key(C& c, Section&& section, F&& f) {
  section("model");
  f(Key{.name = "model", .meaning = "what is trained", .choices = "vit|gpt2"}, c.model);
  f(Key{.name = "preset", .meaning = "shape of a known model; other keys override it",
        .choices = "|vit_ti_14|vit_ti_16|vit_ti_32|vit_s_14|vit_s_16|vit_s_32|vit_b_14|vit_b_16|vit_b_32|vit_l_14|vit_l_16|vit_l_32|"
                   "vit_h_14|vit_h_16|vit_h_32|gpt2|gpt2_medium|gpt2_large|gpt2_xl"}, c.preset);
  f(Key{"image_size", "height and width of the images; 0: the data's", 0, 65536}, c.image_size);
  f(Key{"patch_size", "height and width of a patch", 1, 65536}, c.patch_size);
  f(Key{"channels", "channels of the images; 0: the data's", 0, 4096}, c.channels);
  f(Key{"num_classes", "classes; 0: the data's, 10 for idx", 0, 1e9}, c.num_classes);
  f(Key{"vocab", "gpt2: number of tokens", 1, 1e9}, c.vocab);
  f(Key{"context", "gpt2: tokens a window", 1, 1e9}, c.context);
  f(Key{"width", "channels of the hidden state", 1, 1e6}, c.width);
  f(Key{"depth", "transformer blocks", 1, 1e6}, c.depth);
  f(Key{"num_heads", "attention heads", 1, 1e6}, c.num_heads);
  f(Key{"mlp_ratio", "width of the MLP in units of width", 0.01, 1000}, c.mlp_ratio);
  f(Key{"dropout", "probability of dropping a value", 0, kBelow1}, c.dropout);
  f(Key{"attention_dropout", "probability of dropping an attention weight", 0, kBelow1}, c.attention_dropout);
  f(Key{"stochastic_depth", "probability of skipping the last block, less before it", 0, kBelow1}, c.stochastic_depth);

  section("data");
  f(Key{.name = "data_format", .meaning = "format of the data", .choices = "idx|cifar10|text"}, c.data_format);
  f(Key{"data_path", "directory of the data (idx: with the names of MNIST's files), or the text file"}, c.data_path);
  f(Key{"mean", "subtracted from pixels between 0 and 1, for each channel"}, c.mean);
  f(Key{"std", "then divided by this, for each channel"}, c.std);
  f(Key{"crop_padding", "random crop of the image padded by this many pixels", 0, 4096}, c.crop_padding);
  f(Key{"flip", "mirror half of the training images"}, c.flip);
  f(Key{"test_share", "text: share of the file, its end, kept for testing", 1e-6, kBelow1}, c.test_share);

  section("optimisation");
  f(Key{"batch", "samples a micro-batch", 1, 1e9}, c.batch);
  f(Key{"accumulate", "micro-batches an optimizer step", 1, 1e9}, c.accumulate);
  f(Key{"eval_batch", "samples a batch of the evaluation; 0: as batch", 0, 1e9}, c.eval_batch);
  f(Key{"epochs", "passes over the training data; 0: until max_steps", 0, kMany}, c.epochs);
  f(Key{"max_steps", "optimizer steps at most; 0: no limit", 0, 4e9}, c.max_steps);
  f(Key{.name = "optimizer", .meaning = "update rule", .choices = "sgd|adam|adamw"}, c.optimizer);
  f(Key{"lr", "highest learning rate", 0, 1e6}, c.lr);
  f(Key{"momentum", "sgd: momentum; 0 keeps no state", 0, kBelow1}, c.momentum);
  f(Key{"nesterov", "sgd: Nesterov's momentum"}, c.nesterov);
  f(Key{"betas", "adam, adamw: decay of the two moments", 0, kBelow1}, c.betas);
  f(Key{"eps", "adam, adamw: added to the denominator", 0, 1}, c.eps);
  f(Key{"weight_decay", "decay of weights; norms and biases have none", 0, 1e6}, c.weight_decay);
  f(Key{"clip_norm", "largest global gradient norm; 0: no clipping", 0, kMany}, c.clip_norm);
  f(Key{"label_smoothing", "share of the target spread over all classes", 0, kBelow1}, c.label_smoothing);
  f(Key{.name = "schedule", .meaning = "course of the learning rate after the warm-up", .choices = "constant|cosine"}, c.schedule);
  f(Key{"warmup_epochs", "linear warm-up in epochs", 0, kMany}, c.warmup_epochs);
  f(Key{"warmup_steps", "linear warm-up in steps; 0: as warmup_epochs says", 0, 4e9}, c.warmup_steps);
  f(Key{"lr_floor", "learning rate at the end of the schedule and after it", 0, 1e6}, c.lr_floor);
  f(Key{"freeze", "patterns of parameters that stay as they are, such as \"blocks.0.*\""}, c.freeze);

  section("precision");
  f(Key{.name = "precision",
        .meaning = "what values are kept in and products run in",
        .choices = "32-true|16-mixed|bf16-mixed|16-true|bf16-true"},
    c.precision);
  f(Key{.name = "rounding",
        .meaning = "of updates of 16-bit parameters, without a meaning for others; auto: stochastic without master_weights",
        .choices = "auto|nearest|stochastic"},
    c.rounding);
  f(Key{"master_weights", "an f32 copy of every 16-bit parameter, which updates go to"}, c.master_weights);
  f(Key{.name = "optimizer_state", .meaning = "dtype of moments and momentum: as the parameter, or f32", .choices = "parameter|f32"},
    c.optimizer_state);
  f(Key{.name = "loss_scale",
        .meaning = "factor on the loss that keeps small gradients in f16's range; auto: dynamic in 16-mixed, else off",
        .choices = "auto|dynamic|static|off"},
    c.loss_scale);
  f(Key{"loss_scale_init", "its value, at first or for good", 1e-30, 1e30}, c.loss_scale_init);
  f(Key{"loss_scale_growth", "dynamic: factor after loss_scale_interval finite steps in a row", 1.000001, 1e6}, c.loss_scale_growth);
  f(Key{"loss_scale_backoff", "dynamic: factor after a step that overflowed", 1e-6, kBelow1}, c.loss_scale_backoff);
  f(Key{"loss_scale_interval", "dynamic: finite steps before the scale grows", 1, kMany}, c.loss_scale_interval);
  f(Key{"loss_scale_min", "dynamic: lowest value", 1e-30, 1e30}, c.loss_scale_min);
  f(Key{"loss_scale_max", "dynamic: highest value", 1e-30, 1e30}, c.loss_scale_max);
  f(Key{.name = "non_finite",
        .meaning = "what to do about an infinity or NaN; auto: skip in mixed modes, else stop",
        .choices = "auto|stop|skip|report"},
    c.non_finite);

  section("memory");
  f(Key{.name = "update",
        .meaning = "when parameters are updated: after backward, or inside it as each gradient becomes final",
        .choices = "after|fused"},
    c.update);
  f(Key{.name = "accumulate_schedule",
        .meaning = "micro-batches pass the whole model one by one, or all of them stage by stage",
        .choices = "ordinary|layerwise"},
    c.accumulate_schedule);
  f(Key{.name = "checkpoint",
        .meaning = "which activations are dropped and replayed",
        .choices = "none|block|nested|selective|custom|budget"},
    c.checkpoint);
  f(Key{"checkpoint_levels", "nested: levels of regions inside regions", 1, 16}, c.checkpoint_levels);
  f(Key{"checkpoint_keep", "selective: ops whose results are kept, such as \"attention\""}, c.checkpoint_keep);
  f(Key{"checkpoint_parts", "custom: regions over blocks, such as \"0-3 none\", \"4-7 block keep attention\", \"8-11 group 2 block\""},
    c.checkpoint_parts);
  f(Key{"memory_budget", "budget: bytes that the run may take, such as 2GB; what costs least within them is chosen", 0, 9e18},
    c.memory_budget);
  f(Key{"certify", "hash every value and compare it in replay"}, c.certify);
  f(Key{"loss_chunk", "rows (predictions) whose logits exist at a time, computed again in backward; 0: all, kept", 0, kMany}, c.loss_chunk);
  f(Key{"mlp_chunk", "rows (tokens) whose MLP values exist at a time, computed again in backward; 0: all, kept", 0, kMany}, c.mlp_chunk);
  f(Key{"memory_limit", "bytes that tensors may take, such as 800MiB; 0: what system and control group have free at the start", 0, 9e18},
    c.memory_limit);
  f(Key{.name = "packing",
        .meaning = "where tensors lie: at offsets packed from a plan of the run, or where each fits best when it comes",
        .choices = "plan|online"},
    c.packing);
  f(Key{"timeline", "last steps whose every allocation is recorded and written into the run directory; 0: none", 0, 1000}, c.timeline);

  section("ranks");
  f(Key{.name = "strategy",
        .meaning = "what several ranks do: reduce gradients in every step, or train alone and average parameters now and then",
        .choices = "none|ddp|local_sgd|sharded"},
    c.strategy);
  f(Key{"bucket_bytes", "bytes that travel in one message, about, such as 25MiB", 1, 9e18}, c.bucket_bytes);
  f(Key{.name = "gradient_compression",
        .meaning = "ddp: dtype that f32 gradients travel in; each is rounded to it once, their sum once more, and is f32 again",
        .choices = "none|bf16|f16"},
    c.gradient_compression);
  f(Key{"local_steps", "local_sgd: optimizer steps from averaging to averaging", 1, 1e9}, c.local_steps);
  f(Key{"local_warmup", "local_sgd: steps at the beginning that reduce gradients as ddp does", 0, 4e9}, c.local_warmup);
  f(Key{.name = "local_state",
        .meaning = "local_sgd: what becomes of each rank's optimizer state when parameters are averaged",
        .choices = "keep|average|reset"},
    c.local_state);
  f(Key{"outer_lr", "local_sgd: learning rate of the step on the averaged change; 1 without momentum is the average itself", 1e-6, 1e6},
    c.outer_lr);
  f(Key{"outer_momentum", "local_sgd: Nesterov's momentum of that step", 0, kBelow1}, c.outer_momentum);
  f(Key{.name = "sharded",
        .meaning = "strategy sharded: what is split over the ranks: parameters, gradients and optimizer state; all but parameters; or the last",
        .choices = "full|gradients|optimizer"},
    c.sharded);
  f(Key{"shard_ranks",
        "ranks that share one copy of the model, with strategy sharded or local_sgd; 0: all with sharded, 1 with local_sgd", 0, 1e6},
    c.shard_ranks);
  f(Key{.name = "offload",
        .meaning = "what lives in host memory: parameters and optimizer state, what checkpoints begin with (boundaries), or both",
        .choices = "none|parameters|boundaries|all"},
    c.offload);

  section("run");
  f(Key{"seed", "of everything random", 0, 9e18}, c.seed);
  f(Key{"device", "where to run: cpu, cuda, cuda:1 and so on, or auto, a CUDA device where there is one"}, c.device);
  f(Key{"threads", "threads of the kernels; 0: as the machine has", 0, 1024}, c.threads);
  f(Key{"cuda_graph", "launch what lies between two waits of a step as one CUDA graph"}, c.cuda_graph);
  f(Key{"run_dir", "directory of the run; empty: the first free one of runs/NAME, runs/NAME-2, …"}, c.run_dir);
  f(Key{"snapshot_every", "steps from snapshot to snapshot; 0: only at the end", 0, kMany}, c.snapshot_every);
  f(Key{"keep_snapshots", "newest snapshots that are kept", 1, kMany}, c.keep_snapshots);
  f(Key{"eval_every", "epochs from evaluation to evaluation; 0: only at the end", 0, kMany}, c.eval_every);
  f(Key{"log_every", "steps from metrics line to metrics line", 1, kMany}, c.log_every);
}

}  // namespace refrain::detail
