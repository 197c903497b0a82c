#include <refrain/train/replica_states.h>

#include <refrain/core/check.h>

#include <nlohmann/json.hpp>

namespace refrain {

namespace fs = std::filesystem;

namespace {

constexpr const char* kNumbersFile = "replicas.json";
constexpr int kTag = 0x736e6170;
constexpr std::int64_t kMostText = std::int64_t{64} << 20;

struct SnapshotScope {
  KindScope kind{MemoryKind::communication};
  ModuleScope root{ModulePath::root()};
  ModuleScope module{"snapshot"};
};

void send(ProcessGroup& world, const Tensor& values) { world.send(to_device(values, world.device()), 0, kTag).wait(); }

Tensor receive(ProcessGroup& world, int from, const Shape& shape, DType dtype) {
  const SnapshotScope scope;
  const Tensor values = empty(shape, dtype, world.device());
  world.receive(values, from, kTag).wait();
  return values;
}

// Names are the same on all ranks, so values alone travel.
std::vector<double> values_of(const ReplicaNumbers& numbers) {
  std::vector<double> values;
  for (const auto* map : {&numbers.optimizer, &numbers.scaler})
    for (const auto& entry : *map) values.push_back(entry.second);
  return values;
}

ReplicaNumbers with_values(ReplicaNumbers numbers, const std::vector<double>& values) {
  auto next = values.begin();
  for (auto* map : {&numbers.optimizer, &numbers.scaler})
    for (auto& entry : *map) entry.second = *next++;
  return numbers;
}

}  // namespace

std::string replica_file(int replica) { return concat("optimizer-replica-", replica, ".safetensors"); }

void send_replica_state(const Replicas& replicas, std::vector<StoredTensor> tensors, const ReplicaNumbers& numbers) {
  const bool sends = replicas.world->rank() == replicas.own * replicas.size;
  if (sends) {
    const SnapshotScope scope;
    const std::vector<double> values = values_of(numbers);
    const Tensor all = empty({std::int64_t(values.size())}, DType::f64, replicas.world->device());
    set_bytes(all, std::as_bytes(std::span(values)));
    send(*replicas.world, all);
  }
  sort_as_stored(tensors);
  for (const StoredTensor& tensor : tensors) {
    const Tensor values = tensor.values();  // gathered from all of the replica
    if (sends) send(*replicas.world, values.without_autograd());
  }
}

void add_replica_states(SnapshotWriter& writer, const Replicas& replicas, const std::vector<StoredTensor>& own_tensors,
                        const ReplicaNumbers& own_numbers) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const std::int64_t num_values = std::int64_t(values_of(own_numbers).size());
  for (int replica = 1; replica < replicas.count; ++replica) {
    const Tensor values = receive(*replicas.world, replica * replicas.size, {num_values}, DType::f64);
    const ReplicaNumbers numbers = with_values(own_numbers, values.to_vector<double>());
    json.push_back({{"optimizer", numbers.optimizer}, {"loss_scaler", numbers.scaler}});
  }
  writer.add(kNumbersFile, [&](FileWriter& file) { file.write(json.dump(2) + "\n"); });
  for (int replica = 1; replica < replicas.count && !own_tensors.empty(); ++replica) {
    std::vector<StoredTensor> theirs = own_tensors;
    for (StoredTensor& tensor : theirs) {
      tensor.values = [&replicas, replica, shape = tensor.shape, dtype = tensor.dtype] {
        return receive(*replicas.world, replica * replicas.size, shape, dtype);
      };
    }
    writer.add(replica_file(replica), [&](FileWriter& file) { write_safetensors(file, std::move(theirs)); });
  }
}

std::vector<ReplicaNumbers> read_replica_numbers(const fs::path& snapshot) {
  const fs::path path = snapshot / kNumbersFile;
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  std::vector<ReplicaNumbers> all;
  try {
    for (const nlohmann::json& entry : nlohmann::json::parse(read_text_file(path, kMostText)))
      all.push_back({entry.at("optimizer").get<std::map<std::string, double>>(), entry.at("loss_scaler").get<std::map<std::string, double>>()});
  } catch (const nlohmann::json::exception& problem) {
    fail<DataError>(path.string(), ": ", problem.what());
  }
  return all;
}

}  // namespace refrain
