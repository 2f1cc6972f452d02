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

// far.cc: peers that are far away. What is on its way there is more than the kernel's buffers hold, and the way there
// and back takes longer than copying what came unasked. Of an established TCP connection: the least time there and back
// that the kernel has measured is 1 ms or more.
bool is_far(int fd);
// Gives it a send buffer that holds what a line of 1 Gbit/s has on its way in 60 ms, where the kernel's own tuning ends
// before that and the process may. epoll calls a socket writable when a third of its buffer is free: what is on its way
// must fit in the other two.
void widen_send_buffer(int fd);

}  // namespace prun::socket
