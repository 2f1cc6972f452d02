// Socket options of an established connection.
#pragma once
#include <string>

#include "options.h"

namespace prun::socket {

// Returns the congestion control in force. Throws Failure when one was asked for that the kernel does not grant.
std::string tune_tcp(int fd, const Options& options);
void tune_unix(int fd, const Options& options);

}  // namespace prun::socket
