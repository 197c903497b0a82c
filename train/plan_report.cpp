#include <refrain/train/plan_report.h>

#include <refrain/core/check.h>
#include <refrain/core/cpu/process_memory.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/peak_json.h>
#include <refrain/train/remedies_json.h>
#include <refrain/train/report.h>

#include <cstdio>

namespace refrain {

namespace {

std::string row(const std::string& name, const std::string& value) {
  char text[200];
  std::snprintf(text, sizeof text, "  %-44s %16s\n", name.c_str(), value.c_str());
  return text;
}

// 1.23e12 → "1.23 T".
std::string scaled(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  int prefix = 0;
  while (value >= 1000 && prefix < 6) value /= 1000, ++prefix;
  char text[48];
  std::snprintf(text, sizeof text, prefix == 0 ? "%.0f %s%s" : "%.2f %s%s", value, kPrefixes[prefix], unit);
  return text;
}

std::string duration(double seconds) {
  char text[48];
  if (seconds < 1) std::snprintf(text, sizeof text, "%.1f ms", 1e3 * seconds);
  else if (seconds < 120) std::snprintf(text, sizeof text, "%.1f s", seconds);
  else if (seconds < 7200) std::snprintf(text, sizeof text, "%.1f min", seconds / 60);
  else std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

double samples_a_second(const Plan& plan) {
  const double samples = double(std::min(plan.config.batch * plan.config.accumulate * plan.world_size, plan.num_train));
  return plan.step_seconds() > 0 ? samples / plan.step_seconds() : 0;
}

}  // namespace

std::string plan_report(const Plan& plan) {
  const Config& config = plan.config;
  const char* where = device_kind(config) == DeviceKind::cuda ? "CUDA" : "this CPU";
  std::string out = concat("Plan of a training on ", where, ". Nothing was computed; of the data at most headers were read.\n\n");
  out += row("model", config.preset.empty() ? config.model : config.preset);
  out += row("parameters", std::to_string(plan.num_parameters));
  if (plan.world_size > 1) out += row("strategy", concat(config.strategy, ", rank ", plan.rank, " of ", plan.world_size));
  out += row("device", std::string(name_of(device_kind(config))));
  out += row("precision", config.precision);
  out += row("optimizer", config.optimizer);
  out += row("update", config.update);
  out += row("checkpoint", config.checkpoint);
  out += row("micro-batch, micro-batches a step", concat(config.batch, " x ", config.accumulate));
  out += row("samples to train on, to test on", concat(plan.num_train, ", ", plan.num_test));
  out += row("steps, evaluations", concat(plan.steps, ", ", plan.evaluations));
  for (const std::string& note : plan.notes) out += concat("  note: ", note, "\n");
  if (const std::int64_t limit = config.memory_limit.value; limit > 0) {
    const std::int64_t left = limit - plan.reserved_bytes;
    out += row("memory_limit", concat(bytes_text(limit), left >= 0 ? " holds" : " is too low"));
  }
  if (config.offload != "none") {
    out += row("host memory, pageable", bytes_text(plan.host_reserved_bytes));
    if (plan.world_size > 1)
      out += row(concat("of ", plan.world_size, " ranks on one machine"), bytes_text(plan.world_size * plan.host_reserved_bytes));
  }
  out += concat("\n", peak_report(plan.ledger, plan.reserved_bytes), outside_arena_report(process_memory().resident));
  out += concat("\nWork\n\n", row("a step", scaled(plan.step.total.flops, "FLOP")),
                row("an evaluation", scaled(plan.evaluation.total.flops, "FLOP")), row("all steps", scaled(plan.run.total.flops, "FLOP")),
                row("of it replayed", percent(plan.replayed_share())));
  if (plan.rates) {
    out += concat("\nTime, an estimate from the two rates ", plan.rates->source, "\n\n");
    out += row("a block's arithmetic", scaled(plan.rates->flops_per_second, "FLOP/s")) +
           row("copy", scaled(plan.rates->bytes_per_second, "B/s"));
    out += row("a step", duration(plan.step_seconds())) + row("samples a second", scaled(samples_a_second(plan), ""));
    out += row("the run, evaluations included", duration(plan.run_seconds()));
  }
  return out;
}

std::string plan_json(const Plan& plan, const Receipt* receipt, const Remedies& remedies) {
  const Config& config = plan.config;
  nlohmann::ordered_json json;
  json["model"] = config.model;
  json["preset"] = config.preset;
  json["num_parameters"] = plan.num_parameters;
  json["device"] = name_of(device_kind(config));
  if (plan.world_size > 1) {
    json["strategy"] = config.strategy;
    json["world_size"] = plan.world_size;
    json["rank"] = plan.rank;
  }
  json["precision"] = config.precision;
  json["optimizer"] = config.optimizer;
  json["update"] = config.update;
  json["checkpoint"] = config.checkpoint;
  json["batch"] = config.batch;
  json["accumulate"] = config.accumulate;
  json["eval_batch"] = config.eval_batch;
  json["num_train"] = plan.num_train;
  json["num_test"] = plan.num_test;
  json["notes"] = plan.notes;
  json["steps"] = plan.steps;
  json["steps_per_epoch"] = plan.steps_per_epoch;
  json["evaluations"] = plan.evaluations;
  add_peak(json, plan.ledger, plan.reserved_bytes);
  if (config.offload != "none") json["host_bytes"] = {{"peak", plan.host.peak_bytes()}, {"reserved", plan.host_reserved_bytes}};
  json["outside_arena_bytes"] = {{"start", process_memory().resident}};
  json["peak_by_module"] = nlohmann::ordered_json::array();
  for (const PeakEntry& entry : plan.ledger.entries_at_peak())
    json["peak_by_module"].push_back({{"module", entry.module->text}, {"kind", name_of(entry.kind)}, {"bytes", entry.bytes}});
  if (config.memory_limit.value > 0) {
    json["memory_limit"] = config.memory_limit.value;
    json["fits"] = plan.reserved_bytes <= config.memory_limit.value;
  }
  json["flops_per_step"] = plan.step.total.flops;
  json["flops_per_evaluation"] = plan.evaluation.total.flops;
  json["flops"] = plan.run.total.flops;
  json["replayed_flops_share"] = plan.replayed_share();
  if (plan.rates)
    json["estimate"] = {{"rates", plan.rates->source},
                        {"flops_per_second", plan.rates->flops_per_second},
                        {"bytes_per_second", plan.rates->bytes_per_second},
                        {"step_seconds", plan.step_seconds()},
                        {"samples_per_second", samples_a_second(plan)},
                        {"run_seconds", plan.run_seconds()}};
  if (receipt != nullptr) json["receipt"] = receipt_json(*receipt, remedies);
  return json.dump(2) + "\n";
}

}  // namespace refrain
