// Keepalive and TCP_USER_TIMEOUT detect an unplugged peer without waiting for data.
#include "launch/tcp.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <prun/sdk/link_timeout.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/error.h"

namespace prun {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList look_up(const HostPort& at, int* error) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  *error = getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &list);
  return AddressList(*error == 0 ? list : nullptr, &freeaddrinfo);
}

AddressList look_up(const HostPort& at) {
  int error = 0;
  AddressList list = look_up(at, &error);
  if (error != 0) throw Error(Exit::join, fmt::format("--rendezvous: host '{}': {}", at.host, gai_strerror(error)));
  return list;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Returns the inode of the socket that listens on the port, from the kernel's table; 0 = none.
unsigned long listening_inode(const char* table, unsigned port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retries, uid, timeout;
    unsigned long inode = 0;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retries >> uid >> timeout >> inode;
    size_t colon = local.rfind(':');
    if (state == "0A" && colon != std::string::npos && std::stoul(local.substr(colon + 1), nullptr, 16) == port)
      return inode;
  }
  return 0;
}

}  // namespace

HostPort parse_host_port(const std::string& text) {
  size_t colon = text.rfind(':');
  HostPort at;
  if (colon != std::string::npos) at = {text.substr(0, colon), text.substr(colon + 1)};
  if (at.host.size() > 2 && at.host.front() == '[' && at.host.back() == ']')
    at.host = at.host.substr(1, at.host.size() - 2);
  bool digits = !at.port.empty() && at.port.size() <= 5 && at.port.find_first_not_of("0123456789") == std::string::npos;
  if (at.host.empty() || !digits || std::stoi(at.port) < 1 || std::stoi(at.port) > 65535)
    throw Error(Exit::usage, fmt::format("--rendezvous must be HOST:PORT with a port from 1 to 65535, not '{}'", text));
  return at;
}

std::string why_unresolved(const HostPort& at) {
  int error = 0;
  look_up(at, &error);
  return error == 0 ? "" : gai_strerror(error);
}

HostPort resolve(const std::string& text) {
  HostPort at = parse_host_port(text);
  AddressList list = look_up(at);
  at.loopback = true;
  for (const addrinfo* each = list.get(); each; each = each->ai_next) at.loopback &= is_loopback(each->ai_addr);
  return at;
}

Fd listen_on(const HostPort& at) {
  AddressList list = look_up(at);
  int error = 0;
  for (const addrinfo* each = list.get(); each; each = each->ai_next) {
    Fd fd(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0) return fd;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRINUSE)
    throw Error(Exit::transport, fmt::format("port {} on {} is in use by {}", at.port, at.host, port_holder(at.port)));
  const char* hint = error == EADDRNOTAVAIL ? "; node 0 listens there, so it must be an address of this machine" : "";
  throw Error(Exit::transport,
              fmt::format("cannot listen on {}:{}: {}{}", at.host, at.port, std::strerror(error), hint));
}

Fd connect_to(const HostPort& to, std::chrono::milliseconds limit, std::string* why) {
  int unknown = 0;
  AddressList list = look_up(to, &unknown);
  if (unknown != 0) *why = fmt::format("host '{}': {}", to.host, gai_strerror(unknown));
  for (const addrinfo* each = list.get(); each; each = each->ai_next) {
    Fd fd(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd ready{fd.get(), POLLOUT, 0};
      socklen_t bytes = sizeof error;
      if (poll(&ready, 1, static_cast<int>(limit.count())) <= 0)
        error = ETIMEDOUT;
      else
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error == 0) {
      fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
      return fd;
    }
    *why = std::strerror(error);
  }
  return Fd();
}

void set_tcp_options(int fd, int link_timeout_s) {
  auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);  // 2 s of silence, then probes 1 s apart
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, std::max(3, link_timeout_s - 2));
  set(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set(IPPROTO_TCP, sdk::kTcpRtoMaxMs, sdk::kLeastRtoMaxMs);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, sdk::user_timeout_ms(static_cast<unsigned>(link_timeout_s)));
}

std::string peer_name(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return fmt::format("{}:{}", host, port);
}

std::string port_holder(const std::string& port) {
  unsigned number = static_cast<unsigned>(std::stoul(port));
  unsigned long inode = listening_inode("/proc/net/tcp", number);
  if (inode == 0) inode = listening_inode("/proc/net/tcp6", number);
  std::string wanted = fmt::format("socket:[{}]", inode);
  namespace fs = std::filesystem;
  std::error_code denied;  // for other users' processes
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", denied)) {
    std::string pid = process.path().filename();
    if (inode == 0 || pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const fs::directory_entry& fd : fs::directory_iterator(process.path() / "fd", denied)) {
      if (fs::read_symlink(fd.path(), denied).string() != wanted) continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return fmt::format("pid {} ({})", pid, name);
    }
  }
  return "another process";
}

}  // namespace prun
