// A thread that makes batch i + 1 while batch i is used, so that neither a slow file nor many random numbers stand in
// compute.
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
  // `fill(batch, to)` writes the parts of a batch, of `bytes` each, where `to` says. It is called by one thread at a
  // time; what it throws, take() throws when that batch is taken.
  using Fill = std::function<void(int64_t batch, const std::vector<void*>& to)>;
  ReadAhead(std::vector<int64_t> bytes, Fill fill);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Writes batch `batch` where `to` says, and has the thread begin with the one after it. Blocks while it is not there.
  void take(int64_t batch, const std::vector<void*>& to);

 private:
  void work();

  std::vector<int64_t> bytes_;
  Fill fill_;
  std::vector<std::vector<std::byte>> parts_;
  std::vector<void*> staged_;  // the parts' memory
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t wanted_ = -1, made_ = -1;  // batches; -1: none
  bool ends_ = false;
  std::exception_ptr failed_;  // of `made_`
  std::thread thread_;         // from the first take on
};

}  // namespace prun
