// Independent pieces of work, on this thread and one more. Plans are such pieces: each runs alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <future>

namespace refrain {

// f(0), …, f(count - 1), begun in this order. Throws what one of them throws, after the other thread has ended.
template <class F>
void for_each_two_at_a_time(std::size_t count, const F& f) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) f(i);
  };
  std::future<void> other;
  if (count > 1) other = std::async(std::launch::async, work);
  work();
  if (other.valid()) other.get();
}

}  // namespace refrain
