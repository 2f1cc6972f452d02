// A forked child that replies through a pipe; its owner's destructor kills and reaps it.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace prun {

// Appends the output of `pipe` to `reply` until all writers have closed it or `reply` has `enough` bytes. Returns false
// if the deadline comes first.
bool read_to_end(int pipe, std::chrono::steady_clock::time_point deadline, std::string& reply,
                 size_t enough = SIZE_MAX);

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `body` runs in the child, receives the write end of the pipe and ends the process. The child also ends with this
  // thread. Throws Error(usage) if no process can be started.
  explicit ChildProcess(const std::function<void(int pipe)>& body);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  // Calls read_to_end on the child's output.
  bool read_reply(Clock::time_point deadline, std::string& reply, size_t enough = SIZE_MAX) {
    return read_to_end(read_end_, deadline, reply, enough);
  }
  int wait();  // returns its status, as waitpid does

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

}  // namespace prun
