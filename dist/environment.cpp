// What launchers set: torchrun's names, Open MPI's, Slurm's.
#include <refrain/dist/join_group.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace refrain {

namespace {

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return {};
  return value;
}

int number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<RendezvousError>(error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most, name,
                         ": expected a number from ", least, " to ", most, ", got '", text, "'");
  return value;
}

constexpr int kMostRanks = 1024;

// The names one launcher uses.
struct Names {
  std::string rank, world_size, local_rank, local_world_size;
};
const Names kNames[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // A step's, which srun starts: a batch script is rank 0 of nothing.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

std::chrono::milliseconds seconds(const std::string& name, std::chrono::milliseconds otherwise) {
  const auto text = variable(name);
  if (!text) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text->c_str(), &end);
  check<RendezvousError>(end == text->c_str() + text->size() && std::isfinite(value) && value >= 0.1 && value <= 1e6, name,
                         ": expected a number of seconds from 0.1 to 1000000, got '", *text, "'");
  return std::chrono::milliseconds(std::int64_t(value * 1000));
}

}  // namespace

Place place_from_environment() {
  Place place;
  const Names* names = nullptr;
  for (const Names& candidate : kNames) {
    const bool has_rank = variable(candidate.rank).has_value(), has_size = variable(candidate.world_size).has_value();
    if (&candidate == kNames) {  // half of them is a mistake; Slurm sets half of its own outside steps
      check<RendezvousError>(has_rank || !has_size, candidate.world_size, " is set, ", candidate.rank, " is not");
      check<RendezvousError>(has_size || !has_rank, candidate.rank, " is set, ", candidate.world_size, " is not");
    }
    if (has_rank && has_size) {
      names = &candidate;
      break;
    }
  }
  if (names == nullptr) return place;

  place.world_size = number(names->world_size, *variable(names->world_size), 1, kMostRanks);
  place.rank = number(names->rank, *variable(names->rank), 0, kMostRanks - 1);
  check<RendezvousError>(place.rank < place.world_size, names->rank, " is ", place.rank, ", but ", names->world_size, " is ",
                         place.world_size, ": ranks go from 0 to ", place.world_size - 1);
  const auto local_size = variable(names->local_world_size);
  // Slurm writes 2(x3) for three machines of two.
  place.local_world_size =
      local_size ? number(names->local_world_size, local_size->substr(0, local_size->find_first_of("(,")), 1, kMostRanks)
                 : place.world_size;
  const auto local_rank = variable(names->local_rank);
  place.local_rank = local_rank ? number(names->local_rank, *local_rank, 0, kMostRanks - 1) : place.rank % place.local_world_size;
  if (place.world_size == 1) return place;

  const auto address = variable("MASTER_ADDR");
  check<RendezvousError>(address || place.local_world_size >= place.world_size,
                         "MASTER_ADDR is not set: with ranks on several machines it names the one of rank 0");
  if (address) place.master_addr = *address;
  if (const auto port = variable("MASTER_PORT")) place.master_port = number("MASTER_PORT", *port, 1, 65535);
  if (const auto token = variable("REFRAIN_TOKEN")) place.token = *token;
  if (const auto fd = variable("REFRAIN_STORE_FD"); fd && place.rank == 0)
    place.store_fd = number("REFRAIN_STORE_FD", *fd, 3, 1 << 20);
  place.is_store_open = variable("REFRAIN_STORE_OPEN").value_or("0") == "1";
  return place;
}

GroupOptions GroupOptions::from_environment() {
  GroupOptions options;
  options.heartbeat_timeout = seconds("REFRAIN_HEARTBEAT_TIMEOUT", options.heartbeat_timeout);
  options.collective_timeout = seconds("REFRAIN_COLLECTIVE_TIMEOUT", options.collective_timeout);
  options.rendezvous_timeout = seconds("REFRAIN_RENDEZVOUS_TIMEOUT", options.rendezvous_timeout);
  options.check_every_call = variable("REFRAIN_CHECK_COLLECTIVES").value_or("0") != "0";
  return options;
}

std::unique_ptr<ProcessGroup> join_group(const Device& device) {
  return join_group(place_from_environment(), device, GroupOptions::from_environment());
}

}  // namespace refrain
