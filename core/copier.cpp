#include <refrain/core/copier.h>

#include <refrain/core/check.h>

#include <cstring>

namespace refrain {

Copier::~Copier() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Copier::Ticket Copier::begin(const Tensor& to, const Tensor& from) {
  check(to.is_contiguous() && from.is_contiguous() && to.dtype() == from.dtype() && to.numel() == from.numel(), "copier: from ",
        from.dtype(), " ", from.shape(), " to ", to.dtype(), " ", to.shape(), ": expected contiguous tensors of one dtype and size");
  if (!to.has_bytes() || to.numel() == 0) return kDone;
  if (!to.is_on_host() || !from.is_on_host()) {
    const Tensor source = from.without_autograd();
    copy_bytes(to, Tensor(source.storage(), source.device(), source.dtype(), to.shape(), to.strides(), source.offset()));
    return kDone;
  }
  const Job job{to.address(), from.address(), to.bytes()};
  check(job.from != nullptr, "copier: a tensor of shape ", from.shape(), " has no bytes");
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  jobs_.push_back(job);
  changed_.notify_all();
  return ++num_begun_;
}

void Copier::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_done_ >= ticket; });
}

void Copier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    std::memcpy(job.to, job.from, std::size_t(job.bytes));
    lock.lock();
    ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace refrain
