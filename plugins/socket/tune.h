// Socket options of connections.
#pragma once
#include <string>

#include "options.h"

namespace prun::socket {

// Sets the congestion control of a socket whose connections do not leave this host. Called before connect or listen,
// because setting it later keeps the pacing of the system's congestion control (bbr), which delays each segment by a
// timer.
void tune_tcp_of_host(int fd, const Options& options);
// Sets the options of an established connection. Returns the congestion control in force. Throws Failure if the kernel
// refuses the configured one.
std::string tune_tcp(int fd, const Options& options);
void tune_unix(int fd, const Options& options);

// Returns whether the peer of this established TCP connection is far away (far.cc): the kernel has measured a minimum
// round-trip time of at least 1 ms. To such a peer the bytes in flight exceed the kernel's buffers, and a round trip
// takes longer than copying an unexpected message.
bool is_far(int fd);
// Raises the send buffer to the bandwidth-delay product of 1 Gbit/s and 60 ms, if the kernel's own limit is lower and
// the process has the permission. epoll reports a socket as writable when a third of its buffer is free, so the bytes
// in flight must fit into the other two thirds.
void widen_send_buffer(int fd);

}  // namespace prun::socket
