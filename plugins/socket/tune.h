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

}  // namespace prun::socket
