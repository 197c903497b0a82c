#include <refrain/dist/newborn_pieces.h>

#include <refrain/dist/buckets.h>
#include <refrain/dist/shard_layout.h>

namespace refrain {

std::function<void(const std::string&, const Tensor&)> NewbornPieces::hook() {
  return [this](const std::string& name, const Tensor& parameter) {
    const detail::Piece piece = detail::piece_of(parameter.numel(), rank_, world_size_);
    const KindScope kind(MemoryKind::parameter);
    const Tensor own = empty({piece.numel()}, parameter.dtype(), home_);
    copy_bytes(own, detail::flat_part(parameter.without_autograd(), piece.begin, piece.numel()));
    pieces_[name] = own;
    parameter.storage()->evict();
  };
}

Tensor NewbornPieces::take(const std::string& name) {
  const auto found = pieces_.find(name);
  check(found != pieces_.end(), "sharded: parameter '", name, "' is away, and nobody has its values");
  const Tensor piece = found->second;
  pieces_.erase(found);
  return piece;
}

}  // namespace refrain
