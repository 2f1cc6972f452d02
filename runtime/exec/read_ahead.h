// A thread that makes batch i + 1 while batch i is used, so that neither file reads nor random numbers delay compute.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace prun {

class ReadAhead {
 public:
  // `fill(batch, to)` writes the parts of a batch, of `bytes` each, to `to`. One thread at a time calls it. take()
  // rethrows its exception for that batch.
  using Fill = std::function<void(int64_t batch, const std::vector<void*>& to)>;
  ReadAhead(std::vector<int64_t> bytes, Fill fill);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Writes batch `batch` to `to`, waiting until it is made, and lets the thread begin the next one.
  void take(int64_t batch, const std::vector<void*>& to);

 private:
  void work();

  std::vector<int64_t> bytes_;
  Fill fill_;
  std::vector<std::vector<std::byte>> parts_;
  std::vector<void*> staged_;  // memory of the parts
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t wanted_ = -1, made_ = -1;  // batches; -1 = none
  bool ends_ = false;
  std::exception_ptr failed_;  // exception of batch `made_`
  std::thread thread_;         // started by the first take
};

}  // namespace prun
