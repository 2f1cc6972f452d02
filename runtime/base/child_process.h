// A forked child whose reply is what it writes into a pipe; it is killed and reaped with its owner.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace prun {

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `body` runs in the child, gets the write end of the pipe and ends the process. The child ends with this thread,
  // too. Throws Error(usage) where no process can be started.
  explicit ChildProcess(const std::function<void(int pipe)>& body);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  // Appends what the child writes until it closes the pipe or `reply` has `enough` bytes. False: the deadline came
  // first.
  bool read_reply(Clock::time_point deadline, std::string& reply, size_t enough = SIZE_MAX);
  int wait();  // its status, as waitpid says it

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

}  // namespace prun
