// TCP for the launchers: "host:port", listening, connecting with a deadline, and which process holds a port.
#pragma once
#include <chrono>
#include <string>

#include "launch/control.h"

namespace prun {

inline constexpr int kBacklog = 4096;  // connections that wait to be accepted; the kernel may allow less

struct HostPort {
  std::string host, port;
  bool loopback = false;  // every address of the host is
};

// Throws Error(usage) for anything but HOST:PORT or [V6]:PORT, Error(join) when the name is unknown.
HostPort resolve(const std::string& text);

// Throws Error(transport): the port is in use (names the process), or the address is not of this machine.
Fd listen_on(const HostPort& at);

// One attempt; an empty Fd and `why` when nobody answers in time.
Fd connect_to(const HostPort& to, std::chrono::milliseconds limit, std::string* why);

// No delay, keepalive; a lost path is told within `link_timeout_s`.
void set_tcp_options(int fd, int link_timeout_s);
std::string peer_name(int fd);  // "10.0.0.7:4711"

// "pid 77 (nginx)", or "another process" when /proc does not tell.
std::string port_holder(const std::string& port);

}  // namespace prun
