// The caller must be single-threaded, because the child continues after fork without exec.
#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace prun {

bool read_to_end(int pipe, std::chrono::steady_clock::time_point deadline, std::string& reply, size_t enough) {
  char block[65536];
  while (reply.size() < enough) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd readable{pipe, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t size = read(pipe, block, sizeof block);
    if (size == 0) return true;
    if (size > 0) reply.append(block, static_cast<size_t>(size));
  }
  return true;
}

ChildProcess::ChildProcess(const std::function<void(int pipe)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw usage_error(fmt::format("pipe: {}", strerror(errno)));
  std::fflush(nullptr);  // otherwise both processes write the buffered text
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) body(ends[1]);
    _exit(1);
  }
  const int error = errno;
  close(ends[1]);
  read_end_ = ends[0];
  if (pid_ > 0) return;
  close(read_end_);
  throw usage_error(
      fmt::format("cannot start a process: {}{}", strerror(error),
                  error == EAGAIN ? " (limit on processes, see ulimit -u and the cgroup's pids.max)" : ""));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), read_end_(std::exchange(other.read_end_, -1)) {}

ChildProcess::~ChildProcess() {
  if (read_end_ >= 0) close(read_end_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  wait();
}

int ChildProcess::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace prun
