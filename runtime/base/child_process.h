// A forked child whose reply is what it writes into a pipe; it is killed and reaped with its owner.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace prun {

// Appends what comes out of `pipe` until its writers have closed it or `reply` has `enough` bytes. False: the deadline
// came first.
bool read_to_end(int pipe, std::chrono::steady_clock::time_point deadline, std::string& reply,
                 size_t enough = SIZE_MAX);

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `body` runs in the child, gets the write end of the pipe and ends the process. The child ends with this thread,
  // too. Throws Error(usage) where no process can be started.
  explicit ChildProcess(const std::function<void(int pipe)>& body);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  // read_to_end of what the child writes.
  bool read_reply(Clock::time_point deadline, std::string& reply, size_t enough = SIZE_MAX) {
    return read_to_end(read_end_, deadline, reply, enough);
  }
  int wait();  // its status, as waitpid says it

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

}  // namespace prun
