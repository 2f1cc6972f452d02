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
  const char* data = queue_.data() + put_;
  ssize_t put;
  if (!waits_)
    put = ::write(fd_, data, waiting());
  else if (socket_)
    put = ::send(fd_, data, waiting(), MSG_DONTWAIT);
  else if (own_)
    put = ::write(own_.get(), data, waiting());
  else
    put = has_room(fd_, 0) ? ::write(fd_, data, std::min<size_t>(waiting(), PIPE_BUF)) : 0;
  if (put < 0 && errno == EINTR) return true;
  if (put < 0 && errno == EAGAIN) return false;
  if (put < 0) {
    failure_ = std::strerror(errno);
    clear();
    return false;
  }
  if (put > 0) taken_ = Clock::now();
  put_ += static_cast<size_t>(put);
  if (idle()) {
    clear();
  } else if (put_ >= kMostBytes) {  // seldom, because it moves the whole queue
    queue_.erase(0, put_);
    put_ = 0;
  }
  return put > 0;
}

void Outlet::clear() {
  queue_.clear();
  put_ = 0;
}

void Outlet::write(std::string_view text) {
  if (!failure_.empty()) return;
  if (waiting() + text.size() > most_ && !idle()) flush();
  const size_t most = reader_takes() ? std::max(most_, kMostBehind) : most_;
  const Clock::time_point end = Clock::now() + kLongestWait;
  while (waiting() + text.size() > most && !idle() && reader_takes() && Clock::now() < end)
    if (has_room(descriptor(), 100)) flush();
  if (waiting() + text.size() > most && !idle()) {
    dropped_ += static_cast<uint64_t>(std::max<ptrdiff_t>(1, std::count(text.begin(), text.end(), '\n')));
    return;
  }
  queue_.append(text);
  flush();
}

void Outlet::flush() {
  while (!idle() && push()) {
  }
}

void Outlet::finish(double patience_s) {
  flush();
  while (!idle() && has_room(descriptor(), static_cast<int>(patience_s * 1000))) flush();
  dropped_ += static_cast<uint64_t>(std::count(queue_.begin() + static_cast<ptrdiff_t>(put_), queue_.end(), '\n'));
  clear();
}

}  // namespace prun
