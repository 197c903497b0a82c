#include <refrain/train/snapshot_state.h>

#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/core/memory/layout.h>

#include <map>
#include <optional>

#include <nlohmann/json.hpp>

namespace refrain {

namespace fs = std::filesystem;

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStrategyFile = "strategy.safetensors";
constexpr const char* kStateFile = "trainer.json";
constexpr int kFormat = 2;

// A tensor of a snapshot: itself, or this rank's piece of it.
struct Part {
  std::string name;
  Tensor tensor;
  const Sharded::Shard* shard = nullptr;  // that it is a piece of, or the state of

  const Shape& whole() const { return shard != nullptr ? shard->whole : tensor.shape(); }
  std::int64_t first() const { return shard != nullptr ? shard->first : 0; }
};

// The parts of a state; what belongs to a parameter is named by it and a word more, such as `blocks.0.fc1.weight.mean`.
std::vector<Part> parts_of(const std::vector<NamedTensor>& tensors, const Sharded* sharded) {
  std::vector<Part> parts;
  for (const NamedTensor& entry : tensors) {
    const Sharded::Shard* shard = nullptr;
    if (sharded != nullptr) shard = sharded->find(entry.name.substr(0, entry.name.rfind('.')));
    parts.push_back({entry.name, entry.tensor, shard});
  }
  return parts;
}

std::vector<Part> parts_of(const Module& model, const Sharded* sharded) {
  std::vector<Part> parts;
  for (const NamedTensor& entry : model.state_dict()) {
    const Sharded::Shard* shard = sharded != nullptr && sharded->moves_parameters() ? sharded->find(entry.name) : nullptr;
    parts.push_back({entry.name, shard != nullptr ? shard->piece : entry.tensor, shard});
  }
  return parts;
}

std::vector<StoredTensor> stored(const std::vector<Part>& parts, Sharded* sharded) {
  std::vector<StoredTensor> tensors;
  for (const Part& part : parts) {
    tensors.push_back({part.name, part.tensor.dtype(), part.whole(), [part, sharded] {
                         return part.shard != nullptr ? sharded->gathered(*part.shard, part.tensor) : part.tensor;
                       }});
  }
  return tensors;
}

// What replicas that train apart do not have in common: not the masters, which are averaged.
std::vector<NamedTensor> own_of_replica(const OptimizerState& state) {
  std::vector<NamedTensor> own = state.tensors;
  std::erase_if(own, [](const NamedTensor& entry) { return entry.name.ends_with(".master"); });
  return own;
}

// Throws DataError unless the file has exactly these tensors, up to the floating dtype if that may differ.
void check_all(const SafetensorsFile& file, const std::vector<Part>& parts, OtherPrecision other) {
  std::string problems;
  const auto add = [&](const auto&... words) { problems += concat(problems.empty() ? "" : "; ", words...); };
  std::map<std::string_view, bool> expected;
  std::string other_precision;
  int num_others = 0;
  for (const Part& part : parts) {
    expected[part.name] = true;
    const SafetensorsFile::Entry* found = file.find(part.name);
    const DType dtype = part.tensor.dtype();
    if (!found) {
      add("'", part.name, "' is missing");
    } else if (found->shape == part.whole() && found->dtype != dtype && is_floating(found->dtype) && is_floating(dtype)) {
      if (other == OtherPrecision::refuse && num_others++ == 0)
        other_precision = concat("'", part.name, "' is ", found->dtype, ", expected ", dtype);
    } else if (found->shape != part.whole() || found->dtype != dtype) {
      add("'", part.name, "': expected ", dtype, " ", part.whole(), ", found ", found->dtype, " ", found->shape);
    }
  }
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (!expected.contains(entry.name)) add("'", entry.name, "' is unexpected");
  check<DataError>(problems.empty(), file.path().string(), ": ", problems);
  check(num_others == 0, file.path().string(), ": ", other_precision, num_others > 1 ? concat(" (and ", num_others - 1, " more)") : "",
                   ": a run goes on only with the dtypes it was made with; weights alone can be loaded into others");
}

// Every tensor of a file that was checked into the tensor of its name.
void read_all(const SafetensorsFile& file, const std::vector<Part>& parts, OtherPrecision other) {
  for (const Part& part : parts) file.read_part_into(part.name, part.first(), part.tensor.without_autograd(), other);
}

}  // namespace

void save_snapshot(const fs::path& run_dir, const Module& model, const Optimizer& optimizer, const TrainerState& state, Sharded* sharded,
                   bool writes, const Replicas& replicas) {
  if (sharded != nullptr) begin_section(sharded->device(), "snapshot");
  const OptimizerState optimizer_state = optimizer.state_dict();
  const ReplicaNumbers numbers{optimizer_state.scalars, state.scaler};
  std::vector<StoredTensor> own_tensors;
  if (replicas.keep_tensors) own_tensors = stored(parts_of(own_of_replica(optimizer_state), sharded), sharded);
  if (replicas.own > 0) return send_replica_state(replicas, std::move(own_tensors), numbers);
  struct File {
    const char* name;
    std::vector<StoredTensor> tensors;
  };
  std::vector<File> files{{kModelFile, stored(parts_of(model, sharded), sharded)},
                          {kOptimizerFile, stored(parts_of(optimizer_state.tensors, sharded), sharded)}};
  if (!state.strategy.tensors.empty()) files.push_back({kStrategyFile, stored(parts_of(state.strategy.tensors, sharded), sharded)});
  if (!writes) {
    for (File& file : files) {
      sort_as_stored(file.tensors);
      for (const StoredTensor& tensor : file.tensors) tensor.values();
    }
    return;
  }
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
  for (File& each : files)
    writer.add(each.name, [&](FileWriter& file) { write_safetensors(file, std::move(each.tensors)); });
  if (!replicas.are_alike) add_replica_states(writer, replicas, own_tensors, numbers);
  writer.add(kStateFile, [&](FileWriter& file) { file.write(json.dump(2) + "\n"); });
  writer.commit();
}

void load_model(const fs::path& snapshot, Module& model) {
  const SafetensorsFile file(snapshot / kModelFile);
  const std::vector<Part> parts = parts_of(model, nullptr);
  check_all(file, parts, OtherPrecision::convert);
  read_all(file, parts, OtherPrecision::convert);
}

TrainerState load_snapshot(const fs::path& snapshot, Module& model, Optimizer& optimizer, std::uint64_t seed,
                           const OptimizerState& strategy, Sharded* sharded, const Replicas& replicas) {
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
  const std::vector<ReplicaNumbers> others = read_replica_numbers(snapshot);
  state.num_replicas = 1 + int(others.size());
  const bool is_own = replicas.own > 0 && state.num_replicas == replicas.count;
  if (is_own) {
    optimizer_state.scalars = others[std::size_t(replicas.own - 1)].optimizer;
    state.scaler = others[std::size_t(replicas.own - 1)].scaler;
  }
  const SafetensorsFile model_file(snapshot / kModelFile), optimizer_file(snapshot / kOptimizerFile);
  const std::vector<Part> model_parts = parts_of(model, sharded), optimizer_parts = parts_of(optimizer_state.tensors, sharded);
  check_all(model_file, model_parts, OtherPrecision::refuse);
  check_all(optimizer_file, optimizer_parts, OtherPrecision::refuse);
  std::optional<SafetensorsFile> own_file;
  const std::vector<Part> own_parts = parts_of(own_of_replica(optimizer_state), sharded);
  std::error_code error;
  if (is_own && fs::exists(snapshot / replica_file(replicas.own), error))
    check_all(own_file.emplace(snapshot / replica_file(replicas.own)), own_parts, OtherPrecision::refuse);
  if (!state.strategy.scalars.empty() && !strategy.tensors.empty()) {
    const SafetensorsFile strategy_file(snapshot / kStrategyFile);
    const std::vector<Part> strategy_parts = parts_of(strategy.tensors, sharded);
    check_all(strategy_file, strategy_parts, OtherPrecision::refuse);
    read_all(strategy_file, strategy_parts, OtherPrecision::refuse);
    state.strategy.tensors = strategy.tensors;
  }
  read_all(model_file, model_parts, OtherPrecision::refuse);
  read_all(optimizer_file, optimizer_parts, OtherPrecision::refuse);
  if (own_file) read_all(*own_file, own_parts, OtherPrecision::refuse);
  optimizer.load_state(optimizer_state);
  return state;
}

}  // namespace refrain
