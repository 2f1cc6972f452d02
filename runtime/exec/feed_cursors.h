// The cursors of a feed after recent batches, for checkpoints. The reading thread adds them, the writer of checkpoints
// looks them up.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace prun {

class FeedCursors {
 public:
  // `samples`: samples that the run has consumed with this batch. Old cursors are dropped.
  void add(int64_t samples, std::string cursor) {
    const std::lock_guard lock(mutex_);
    cursors_[samples] = std::move(cursor);
    if (cursors_.size() > kMost) cursors_.erase(cursors_.begin());
  }
  std::string after(int64_t samples) const {
    const std::lock_guard lock(mutex_);
    const auto found = cursors_.find(samples);
    return found == cursors_.end() ? "" : found->second;
  }

 private:
  static constexpr size_t kMost = 1024;  // more batches than a save takes
  mutable std::mutex mutex_;
  std::map<int64_t, std::string> cursors_;
};

}  // namespace prun
