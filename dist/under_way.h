// Collectives under way and what each is of: a few at a time, ended in the order in which they began. Internal.
#pragma once

#include <refrain/dist/process_group.h>

#include <cstddef>
#include <deque>
#include <utility>

namespace refrain::detail {

template <class What>
class UnderWay {
 public:
  bool is_empty() const { return works_.empty(); }
  // One is sent while the next waits its turn; more would only hold more scratch.
  bool is_full() const { return works_.size() == 2; }
  void add(Work work, What what) { works_.emplace_back(std::move(work), std::move(what)); }
  // Waits for the oldest, frees its scratch and gives back what it was of.
  What end_oldest() {
    auto [work, what] = std::move(works_.front());
    works_.pop_front();
    work.wait();
    return std::move(what);
  }

 private:
  std::deque<std::pair<Work, What>> works_;
};

}  // namespace refrain::detail
