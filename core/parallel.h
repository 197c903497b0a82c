// A pool of threads whose size never shows in a result: work is cut into pieces by the caller, by shapes alone,
// and pieces may run in any order on any thread.
#pragma once

#include <cstdint>
#include <type_traits>

namespace refrain {

// Threads that kernels may use: REFRAIN_NUM_THREADS, else the process's cores divided by the ranks on this machine
// (LOCAL_WORLD_SIZE or its Slurm and OpenMPI equivalents), at least 1.
int num_threads();
// Replaces the pool. Throws InvalidArgument for values below 1 or above 1024.
void set_num_threads(int count);

// Index of the running thread in its pool, 0 … num_threads() - 1; 0 outside parallel work.
int thread_index();

namespace detail {
using PieceFunction = void (*)(void* context, std::int64_t piece);
void run_pieces(std::int64_t num_pieces, PieceFunction function, void* context);
}  // namespace detail

// Calls f(piece) for piece = 0 … num_pieces - 1, with subnormals flushed to zero, and returns when all are done.
// Inside f a nested call runs its pieces in order on the same thread. The first exception is thrown here.
template <class F>
void parallel_pieces(std::int64_t num_pieces, F&& f) {
  detail::run_pieces(
      num_pieces, [](void* context, std::int64_t piece) { (*static_cast<std::remove_reference_t<F>*>(context))(piece); }, const_cast<void*>(static_cast<const void*>(&f)));
}

// Calls f(begin, end) for pieces of `grain` items of [0, count); the last may be shorter.
template <class F>
void parallel_for(std::int64_t count, std::int64_t grain, F&& f) {
  if (count <= 0) return;
  parallel_pieces((count + grain - 1) / grain, [&](std::int64_t piece) {
    const std::int64_t begin = piece * grain;
    f(begin, begin + grain < count ? begin + grain : count);
  });
}

}  // namespace refrain
