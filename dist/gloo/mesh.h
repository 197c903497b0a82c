// A TCP connection between every two ranks, made by Gloo, and transfers over them that can be ended from any thread.
#pragma once

#include <refrain/dist/world.h>

#include <cstddef>
#include <memory>

namespace refrain::detail {

class Mesh;

// Bytes on their way. They must stay where they are until wait() has returned, or the mesh is closed.
class Transfer {
 public:
  Transfer();
  Transfer(Transfer&& other) noexcept;
  Transfer& operator=(Transfer&& other) noexcept;
  ~Transfer();
  void wait();  // throws TransferError

 private:
  friend class Mesh;
  struct State;
  std::unique_ptr<State> state_;
};

class Mesh final : public Connections {
 public:
  // Connects to every other rank by way of the store. Throws RankLost.
  Mesh(StoreMember& store, int rank, int world_size, const GroupOptions& options);
  ~Mesh() override;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Both ends name the same slot; nothing at all happens for 0 bytes. Throw TransferError.
  Transfer send(int to, std::uint64_t slot, const void* bytes, std::size_t count);
  Transfer receive(int from, std::uint64_t slot, void* bytes, std::size_t count);

  // Breaks all connections: every transfer here ends, and the other ranks' with this one. From any thread, more than once.
  void close() override;

 private:
  friend class Transfer;
  struct Impl;
  Transfer start(int peer, std::uint64_t slot, void* bytes, std::size_t count, bool is_send);
  std::unique_ptr<Impl> impl_;
};

}  // namespace refrain::detail
