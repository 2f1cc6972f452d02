// Sets socket options. TCP: no Nagle, detection of a dead path within link_timeout, the configured congestion control.
// AF_UNIX: a buffer of a few chunks. TCP's buffers are not set, because that would disable the kernel's tuning.
#include "tune.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <prun/sdk/link_timeout.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace prun::socket {
namespace {

constexpr int kUnixBuffer = 256 << 10;  // larger buffers leave the L2 cache between the two copies

void set(int fd, int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof value); }

void set_buffers(int fd, int bytes) {
  // The FORCE variants exceed net.core.wmem_max but need CAP_NET_ADMIN.
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0) set(fd, SOL_SOCKET, SO_SNDBUF, bytes);
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0) set(fd, SOL_SOCKET, SO_RCVBUF, bytes);
}

std::string congestion_on_host(const Options& options) {
  return options.congestion == "auto" ? "cubic" : options.congestion;
}

int set_congestion(int fd, const std::string& name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

// Returns whether both ends have the same IP address.
bool stays_on_host(int fd) {
  sockaddr_storage a{}, b{};
  socklen_t a_length = sizeof a, b_length = sizeof b;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &a_length) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&b), &b_length) != 0) return false;
  if (a.ss_family == AF_INET)
    return reinterpret_cast<sockaddr_in&>(a).sin_addr.s_addr == reinterpret_cast<sockaddr_in&>(b).sin_addr.s_addr;
  return IN6_ARE_ADDR_EQUAL(&reinterpret_cast<sockaddr_in6&>(a).sin6_addr,
                            &reinterpret_cast<sockaddr_in6&>(b).sin6_addr);
}

}  // namespace

void tune_tcp_of_host(int fd, const Options& options) {
  // tune_tcp reports failures.
  if (options.congestion != "system") (void)set_congestion(fd, congestion_on_host(options));
}

std::string tune_tcp(int fd, const Options& options) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, std::max(3, static_cast<int>(options.link_timeout) - 2));
  set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set(fd, IPPROTO_TCP, sdk::kTcpRtoMaxMs, sdk::kLeastRtoMaxMs);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, sdk::user_timeout_ms(options.link_timeout));
  if (options.buffer > 0) set_buffers(fd, static_cast<int>(options.buffer));
  const bool automatic = options.congestion == "auto";
  if (options.congestion != "system" && !(automatic && !stays_on_host(fd))) {
    const std::string name = congestion_on_host(options);
    if (set_congestion(fd, name) != 0 && !automatic && errno != EPERM)
      throw Failure{PRUN_EINVAL,
                    fmt::format("socket option congestion={}: {} (see net.ipv4.tcp_available_congestion_control)", name,
                                std::strerror(errno))};
  }
  char in_force[32] = "unknown";
  socklen_t length = sizeof in_force - 1;
  (void)::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, in_force, &length);
  return in_force;
}

void tune_unix(int fd, const Options& options) {
  set_buffers(fd, options.buffer > 0 ? static_cast<int>(options.buffer) : kUnixBuffer);
}

}  // namespace prun::socket
