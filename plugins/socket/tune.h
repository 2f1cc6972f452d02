// Socket options of connections.
#pragma once
#include <string>

#include "options.h"

namespace prun::socket {

// Before a socket connects or listens whose connections stay on this host. What is set later leaves the pacing of the
// system's congestion control in force (bbr's): each segment then waits for a timer.
void tune_tcp_of_host(int fd, const Options& options);
// Once it is established. Returns the congestion control in force. Throws Failure when one was asked for that the
// kernel does not grant.
std::string tune_tcp(int fd, const Options& options);
void tune_unix(int fd, const Options& options);

// far.cc: peers that are far away. The bytes in flight exceed the kernel's buffers, and a round trip takes longer than
// copying an unexpected message. Returns whether the least round-trip time that the kernel has measured on this
// established TCP connection is at least 1 ms.
bool is_far(int fd);
// Raises the send buffer to the bytes that a line of 1 Gbit/s has in flight in 60 ms, if the kernel's own limit is
// lower and the process may. epoll reports a socket as writable when a third of its buffer is free, so the bytes in
// flight must fit into the other two.
void widen_send_buffer(int fd);

}  // namespace prun::socket
