#include "watch/outlet.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace prun {
namespace {

bool has_room(int fd, int milliseconds) {
  pollfd writable{fd, POLLOUT, 0};
  return poll(&writable, 1, milliseconds) > 0;
}

}  // namespace

Outlet::Outlet(int fd, size_t most) : fd_(fd), most_(most) {
  struct stat info;
  if (fstat(fd, &info) != 0 || S_ISREG(info.st_mode)) return;
  waits_ = true;
  socket_ = S_ISSOCK(info.st_mode);
  if (!socket_)
    own_ = Fd(open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

// Without a second open file, a pipe that polls as ready accepts PIPE_BUF bytes without blocking.
bool Outlet::push() {
  ssize_t put;
  if (!waits_)
    put = ::write(fd_, queue_.data(), queue_.size());
  else if (socket_)
    put = ::send(fd_, queue_.data(), queue_.size(), MSG_DONTWAIT);
  else if (own_)
    put = ::write(own_.get(), queue_.data(), queue_.size());
  else
    put = has_room(fd_, 0) ? ::write(fd_, queue_.data(), std::min<size_t>(queue_.size(), PIPE_BUF)) : 0;
  if (put < 0 && errno == EINTR) return true;
  if (put < 0 && errno == EAGAIN) return false;
  if (put < 0) {
    failure_ = std::strerror(errno);
    queue_.clear();
    return false;
  }
  queue_.erase(0, static_cast<size_t>(put));
  return put > 0;
}

void Outlet::write(std::string_view text) {
  if (!failure_.empty()) return;
  if (queue_.size() + text.size() > most_ && !queue_.empty()) flush();
  if (queue_.size() + text.size() > most_ && !queue_.empty()) {
    dropped_ += static_cast<uint64_t>(std::max<ptrdiff_t>(1, std::count(text.begin(), text.end(), '\n')));
    return;
  }
  queue_.append(text);
  flush();
}

void Outlet::flush() {
  while (!queue_.empty() && push()) {
  }
}

void Outlet::finish(double patience_s) {
  flush();
  while (!queue_.empty() && has_room(own_ ? own_.get() : fd_, static_cast<int>(patience_s * 1000))) flush();
  dropped_ += static_cast<uint64_t>(std::count(queue_.begin(), queue_.end(), '\n'));
  queue_.clear();
}

}  // namespace prun
