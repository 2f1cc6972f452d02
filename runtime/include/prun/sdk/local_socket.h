// Unix sockets with abstract names: they belong to the network namespace and leave no file.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "prun/sdk/descriptor.h"

namespace prun::sdk {

struct LocalAddress {
  explicit LocalAddress(std::string_view name) {
    const size_t used = std::min(name.size(), sizeof address.sun_path - 1);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), used);  // after a zero byte
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + used);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length = 0;
};

// Return a nonblocking socket; empty on failure, with errno set.
inline Descriptor listen_locally(std::string_view name, int type, int backlog) {
  const LocalAddress address(name);
  Descriptor fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), backlog) != 0)) fd.reset();
  return fd;
}
inline Descriptor connect_locally(std::string_view name, int type) {
  const LocalAddress address(name);
  Descriptor fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && ::connect(fd.get(), address.get(), address.length) != 0) fd.reset();
  return fd;
}

// Returns whether the process at the other end runs as this user or as root.
inline bool same_user(int fd) {
  ucred who{};
  socklen_t length = sizeof who;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && (who.uid == ::geteuid() || who.uid == 0);
}

}  // namespace prun::sdk
