#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/libraries/nccl.h>
#include <refrain/kernels/emulator/libraries/nccl_types.h>
#include <refrain/kernels/emulator/queue.h>

#include <cstring>

namespace refrain::cuda::nccl {

namespace {

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

// All that one group put on a stream.
struct Exchange {
  std::shared_ptr<World> world;
  std::shared_ptr<bool> is_aborted;
  int rank;
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<Message>> sent = {};
  bool has_begun = false;

  // Whether it is over.
  bool go_on() {
    const std::lock_guard lock(all().mutex);
    if (*is_aborted) return true;
    if (!has_begun) {
      has_begun = true;
      for (const Operation& o : operations) {
        if (!o.is_send) continue;
        sent.push_back(std::make_shared<Message>(Message{.bytes = {o.bytes, o.bytes + o.count}}));
        world->mail[{rank, o.peer}].push_back(sent.back());
      }
    }
    bool is_waiting = false;
    std::set<int> late;  // whose next message is not there: those after it wait, too
    for (Operation& o : operations) {
      if (o.is_send || o.bytes == nullptr || late.count(o.peer) > 0) continue;
      auto& mail = world->mail[{o.peer, rank}];
      if (mail.empty() || mail.front()->bytes.size() != o.count) {
        late.insert(o.peer);
        is_waiting = true;
        continue;
      }
      std::memcpy(o.bytes, mail.front()->bytes.data(), o.count);
      mail.front()->is_taken = true;
      mail.pop_front();
      o.bytes = nullptr;
    }
    for (const std::shared_ptr<Message>& message : sent) is_waiting = is_waiting || !message->is_taken;
    return !is_waiting;
  }
};

}  // namespace

Result add(Operation o) {
  const std::lock_guard lock(all().mutex);
  if (!is_known(o.comm)) return invalid_argument;
  if (o.comm->error != success) return o.comm->error;
  if (o.comm->num_looks > 0 || o.comm->world->num_joined < int(o.comm->world->comms.size()))
    return refused("a call while the communicator is in progress");
  if (o.peer < 0 || o.peer >= int(o.comm->world->comms.size())) return invalid_argument;
  if (emulator::is_device_address(o.bytes) && !emulator::is_device_memory(o.bytes, o.count)) return invalid_argument;
  group.push_back(o);
  return success;
}

Result begin_group() {
  ++group_depth;
  return success;
}

Result end_group() {
  if (group_depth == 0) return invalid_usage;
  if (--group_depth > 0) return success;
  const std::lock_guard lock(all().mutex);
  if (group.empty()) return success;
  for (const Operation& o : group) {
    if (!is_known(o.comm)) return invalid_argument;
    if (o.comm != group[0].comm || o.stream != group[0].stream) return refused("the fake's groups are of one communicator and stream");
  }
  Comm& comm = *group[0].comm;
  comm.num_looks = 2;
  comm.given = std::move(group);
  group.clear();
  return in_progress;
}

// Gives the stream what a group was made of.
void put_on_stream(Comm& comm, std::vector<Operation> operations) {
  ++emulator::nccl_record().num_groups;
  emulator::nccl_record().num_messages += int(operations.size());
  const cudaStream_t stream = operations[0].stream;
  auto exchange = std::make_shared<Exchange>(Exchange{comm.world, comm.is_aborted, comm.rank, std::move(operations)});
  emulator::submit_waiting(stream, [exchange] { return exchange->go_on(); });
}

}  // namespace refrain::cuda::nccl
