#include "exec/read_ahead.h"

#include <cstring>
#include <utility>

namespace prun {

ReadAhead::ReadAhead(std::vector<int64_t> bytes, Fill fill) : bytes_(std::move(bytes)), fill_(std::move(fill)) {
  for (const int64_t size : bytes_) staged_.push_back(parts_.emplace_back(size).data());
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::take(int64_t batch, const std::vector<void*>& to) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return made_ == wanted_; });
  if (made_ == batch) {
    if (failed_) std::rethrow_exception(failed_);
    for (size_t i = 0; i < to.size(); ++i) std::memcpy(to[i], staged_[i], bytes_[i]);
  } else {
    fill_(batch, to);  // the first batch, or one out of order
  }
  wanted_ = batch + 1;
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || made_ != wanted_; });
    if (ends_) return;
    const int64_t batch = wanted_;
    lock.unlock();
    std::exception_ptr failed;
    try {
      fill_(batch, staged_);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    failed_ = failed;
    made_ = batch;
    changed_.notify_all();
  }
}

}  // namespace prun
