// Operations of a warp's lanes together: shuffles, votes, __syncwarp.
#pragma once

#include <refrain/kernels/emulator/thread.h>

#include <type_traits>

namespace refrain::emulator {

// Called once all lanes of the mask have come, with each lane's argument.
using WarpOperation = void (*)(void** arguments, unsigned mask);
void warp_operation(unsigned mask, WarpOperation operation, void* argument, Site site, const char* what);
void block_barrier(Site site);
void warp_barrier(unsigned mask, Site site);
unsigned active_mask();  // lanes of the warp that have not ended

enum class Shuffle { index, up, down, exclusive_or };

template <class T>
struct ShuffleArgument {
  T value, result;
  int source, width;
};

template <class T, Shuffle kind>
void shuffle_operation(void** arguments, unsigned mask) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto* mine = static_cast<ShuffleArgument<T>*>(arguments[lane]);
    const int width = mine->width, first = int(lane) & ~(width - 1), end = first + width;
    int from = kind == Shuffle::exclusive_or ? int(lane) ^ mine->source
               : kind == Shuffle::down       ? int(lane) + mine->source
               : kind == Shuffle::up         ? int(lane) - mine->source
                                             : first + (mine->source & (width - 1));
    // Across the segment's end a lane gets its own; an exclusive or may read a segment before its own.
    if (kind == Shuffle::exclusive_or ? from >= end : (from < first || from >= end)) from = int(lane);
    if ((mask >> from & 1) == 0) throw Error("__shfl: lane " + std::to_string(lane) + " reads lane " + std::to_string(from) + ", which takes no part");
    mine->result = static_cast<ShuffleArgument<T>*>(arguments[from])->value;
  }
}

template <Shuffle kind, class T>
T shuffle(unsigned mask, T value, int source, int width, Site site) {
  static_assert(std::is_trivially_copyable_v<T>);
  ShuffleArgument<T> argument{value, value, source, width};
  warp_operation(mask, &shuffle_operation<T, kind>, &argument, site, "__shfl");
  return argument.result;
}

struct VoteArgument {
  unsigned value, result;
};
unsigned ballot(unsigned mask, bool predicate, Site site);

// Combines the lanes' values; for __reduce_…_sync.
template <class T, class F>
T warp_combine(unsigned mask, T value, F, Site site, const char* what) {
  struct Argument { T value; };
  Argument argument{value};
  warp_operation(mask, [](void** arguments, unsigned lanes) {
    T total{};
    bool is_first = true;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      const T x = static_cast<Argument*>(arguments[lane])->value;
      total = is_first ? x : F{}(total, x);
      is_first = false;
    }
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((lanes >> lane & 1) != 0) static_cast<Argument*>(arguments[lane])->value = total;
  }, &argument, site, what);
  return argument.value;
}

}  // namespace refrain::emulator
