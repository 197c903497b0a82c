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
constexpr const char* kStateFile = "trainer.json";
constexpr int kFormat = 1;

// Every tensor of the file into the tensor of its name; checks all before it reads any.
void read_all(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  std::string problems;
  const auto add = [&](const auto&... parts) { problems += concat(problems.empty() ? "" : "; ", parts...); };
  std::map<std::string_view, bool> expected;
  for (const NamedTensor& entry : tensors) {
    expected[entry.name] = true;
    const SafetensorsFile::Entry* found = file.find(entry.name);
    if (!found) add("'", entry.name, "' is missing");
    else if (found->shape != entry.tensor.shape() || found->dtype != entry.tensor.dtype())
      add("'", entry.name, "': expected ", entry.tensor.dtype(), " ", entry.tensor.shape(), ", found ", found->dtype, " ", found->shape);
  }
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (!expected.contains(entry.name)) add("'", entry.name, "' is unexpected");
  check<DataError>(problems.empty(), file.path().string(), ": ", problems);
  for (const NamedTensor& entry : tensors) file.read_into(entry.name, entry.tensor.without_autograd());
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

  SnapshotWriter writer(snapshot_directory(run_dir, state.step));
  writer.add(kModelFile, [&](FileWriter& file) { write_safetensors(file, model.state_dict()); });
  writer.add(kOptimizerFile, [&](FileWriter& file) { write_safetensors(file, optimizer_state.tensors); });
  writer.add(kStateFile, [&](FileWriter& file) { file.write(json.dump(2) + "\n"); });
  writer.commit();
}

void load_model(const fs::path& snapshot, Module& model) { read_all(SafetensorsFile(snapshot / kModelFile), model.state_dict()); }

TrainerState load_snapshot(const fs::path& snapshot, Module& model, Optimizer& optimizer, std::uint64_t seed) {
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
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>(path.string(), ": ", error.what());
  }
  check(state.seed == seed, "seed: the snapshot ", snapshot.string(), " was made with ", state.seed, ", got ", seed);
  read_all(SafetensorsFile(snapshot / kOptimizerFile), optimizer_state.tensors);
  load_model(snapshot, model);
  optimizer.load_state(optimizer_state);
  return state;
}

}  // namespace refrain
