#include <refrain/train/snapshot_state.h>

#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>

#include <map>

#include <nlohmann/json.hpp>

namespace refrain {

namespace fs = std::filesystem;

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStrategyFile = "strategy.safetensors";
constexpr const char* kStateFile = "trainer.json";
constexpr int kFormat = 2;

// Throws DataError unless the file has exactly these tensors, up to the floating dtype if that may differ.
void check_all(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors, OtherPrecision other) {
  std::string problems;
  const auto add = [&](const auto&... parts) { problems += concat(problems.empty() ? "" : "; ", parts...); };
  std::map<std::string_view, bool> expected;
  std::string other_precision;
  int num_others = 0;
  for (const NamedTensor& entry : tensors) {
    expected[entry.name] = true;
    const SafetensorsFile::Entry* found = file.find(entry.name);
    const DType dtype = entry.tensor.dtype();
    if (!found) {
      add("'", entry.name, "' is missing");
    } else if (found->shape == entry.tensor.shape() && found->dtype != dtype && is_floating(found->dtype) && is_floating(dtype)) {
      if (other == OtherPrecision::refuse && num_others++ == 0)
        other_precision = concat("'", entry.name, "' is ", found->dtype, ", expected ", dtype);
    } else if (found->shape != entry.tensor.shape() || found->dtype != dtype) {
      add("'", entry.name, "': expected ", dtype, " ", entry.tensor.shape(), ", found ", found->dtype, " ", found->shape);
    }
  }
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (!expected.contains(entry.name)) add("'", entry.name, "' is unexpected");
  check<DataError>(problems.empty(), file.path().string(), ": ", problems);
  check(num_others == 0, file.path().string(), ": ", other_precision, num_others > 1 ? concat(" (and ", num_others - 1, " more)") : "",
                   ": a run goes on only with the dtypes it was made with; weights alone can be loaded into others");
}

// Every tensor of a file that was checked into the tensor of its name.
void read_all(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors, OtherPrecision other) {
  for (const NamedTensor& entry : tensors) file.read_into(entry.name, entry.tensor.without_autograd(), other);
}

}  // namespace

void save_snapshot(const fs::path& run_dir, const Module& model, const Optimizer& optimizer, const TrainerState& state) {
  const OptimizerState optimizer_state = optimizer.state_dict();
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["step"] = state.step;
  json["epoch"] = state.loader.epoch;
  json["position"] = state.loader.position;
  json["seed"] = state.seed;
  json["generator_position"] = state.generator_position;
  json["train_seconds"] = state.train_seconds;
  json["flops"] = state.flops;
  json["replayed_flops"] = state.replayed_flops;
  json["optimizer"] = optimizer_state.scalars;
  json["loss_scaler"] = state.scaler;
  if (!state.strategy.scalars.empty()) json["strategy"] = state.strategy.scalars;

  SnapshotWriter writer(snapshot_directory(run_dir, state.step));
  writer.add(kModelFile, [&](FileWriter& file) { write_safetensors(file, model.state_dict()); });
  writer.add(kOptimizerFile, [&](FileWriter& file) { write_safetensors(file, optimizer_state.tensors); });
  if (!state.strategy.tensors.empty())
    writer.add(kStrategyFile, [&](FileWriter& file) { write_safetensors(file, state.strategy.tensors); });
  writer.add(kStateFile, [&](FileWriter& file) { file.write(json.dump(2) + "\n"); });
  writer.commit();
}

void load_model(const fs::path& snapshot, Module& model) {
  const SafetensorsFile file(snapshot / kModelFile);
  check_all(file, model.state_dict(), OtherPrecision::convert);
  read_all(file, model.state_dict(), OtherPrecision::convert);
}

TrainerState load_snapshot(const fs::path& snapshot, Module& model, Optimizer& optimizer, std::uint64_t seed,
                           const OptimizerState& strategy) {
  const fs::path path = snapshot / kStateFile;
  TrainerState state;
  OptimizerState optimizer_state = optimizer.state_dict();
  try {
    const nlohmann::json json = nlohmann::json::parse(read_text_file(path, std::int64_t{1} << 20));
    check<DataError>(json.at("format") == kFormat, path.string(), ": expected format ", kFormat, ", found ", json.at("format").dump());
    state.step = json.at("step");
    state.loader = {json.at("epoch"), json.at("position")};
    state.seed = json.at("seed");
    state.generator_position = json.at("generator_position");
    state.train_seconds = json.at("train_seconds");
    state.flops = json.at("flops");
    state.replayed_flops = json.at("replayed_flops");
    optimizer_state.scalars = json.at("optimizer").get<std::map<std::string, double>>();
    state.scaler = json.at("loss_scaler").get<std::map<std::string, double>>();
    if (json.contains("strategy")) state.strategy.scalars = json.at("strategy").get<std::map<std::string, double>>();
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>(path.string(), ": ", error.what());
  }
  check(state.seed == seed, "seed: the snapshot ", snapshot.string(), " was made with ", state.seed, ", got ", seed);
  const SafetensorsFile model_file(snapshot / kModelFile), optimizer_file(snapshot / kOptimizerFile);
  check_all(model_file, model.state_dict(), OtherPrecision::refuse);
  check_all(optimizer_file, optimizer_state.tensors, OtherPrecision::refuse);
  if (!state.strategy.scalars.empty() && !strategy.tensors.empty()) {
    const SafetensorsFile strategy_file(snapshot / kStrategyFile);
    check_all(strategy_file, strategy.tensors, OtherPrecision::refuse);
    read_all(strategy_file, strategy.tensors, OtherPrecision::refuse);
    state.strategy.tensors = strategy.tensors;
  }
  read_all(model_file, model.state_dict(), OtherPrecision::refuse);
  read_all(optimizer_file, optimizer_state.tensors, OtherPrecision::refuse);
  optimizer.load_state(optimizer_state);
  return state;
}

}  // namespace refrain
