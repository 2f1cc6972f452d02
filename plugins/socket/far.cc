#include <linux/tcp.h>  // glibc's tcp_info ends before tcpi_min_rtt
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <fstream>

#include "tune.h"

namespace prun::socket {
namespace {

constexpr unsigned kFarMicroseconds = 1000;
constexpr int kSendBuffer = 8 << 20;  // the kernel doubles it to account for its own structures

// Returns the bytes up to which the kernel's tuning widens a send buffer; 0 = unknown.
long tuned_up_to() {
  long least = 0, first = 0, most = 0;
  std::ifstream("/proc/sys/net/ipv4/tcp_wmem") >> least >> first >> most;
  return most;
}

}  // namespace

bool is_far(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return false;
  return info.tcpi_min_rtt >= kFarMicroseconds && info.tcpi_min_rtt != ~0u;
}

void widen_send_buffer(int fd) {
  const int bytes = kSendBuffer;
  if (tuned_up_to() >= 2L * bytes) return;
  // SO_SNDBUFFORCE exceeds net.core.wmem_max but needs CAP_NET_ADMIN. Setting a buffer disables the kernel's tuning, so
  // the buffer is set only if wmem_max permits more than the tuning would reach.
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) == 0) return;
  long most = 0;
  std::ifstream("/proc/sys/net/core/wmem_max") >> most;
  if (2 * most > tuned_up_to()) (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

}  // namespace prun::socket
