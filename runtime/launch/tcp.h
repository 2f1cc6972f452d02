// TCP for the launchers: "host:port", listening, connecting with a deadline, and the process that holds a port.
#pragma once
#include <chrono>
#include <string>

#include "launch/control.h"

namespace prun {

inline constexpr int kBacklog = 4096;  // listen(2) backlog; the kernel may cap it

struct HostPort {
  std::string host, port;
  bool loopback = false;  // all addresses of the host are loopback
};

// Throws Error(usage) for anything but HOST:PORT or [V6]:PORT. Does not set `loopback`.
HostPort parse_host_port(const std::string& text);

// Returns why the name has no address at present; "" if it has.
std::string why_unresolved(const HostPort& at);

// Parses like parse_host_port and sets `loopback`. Throws Error(join) if the name cannot be resolved.
HostPort resolve(const std::string& text);

// Throws Error(transport) if the port is in use (names the process) or the address is not local.
Fd listen_on(const HostPort& at);

// Makes one attempt; returns an empty Fd and `why` if there is no answer in time.
Fd connect_to(const HostPort& to, std::chrono::milliseconds limit, std::string* why);

// Sets no delay and keepalive; a lost path is reported within `link_timeout_s`.
void set_tcp_options(int fd, int link_timeout_s);
std::string peer_name(int fd);  // "10.0.0.7:4711"

// Returns "pid 77 (nginx)", or "another process" if /proc does not list it.
std::string port_holder(const std::string& port);

}  // namespace prun
