// Likely reasons why no node joins, for the messages of a node that waits.
#pragma once
#include <string>

#include "launch/launch.h"

namespace prun {

// Returns "; ..." if the rendezvous is a name of this machine's own loopback address, or if this node's place comes
// from variables that no launcher has set (LaunchOptions::stray_variables); "" otherwise.
std::string why_nodes_may_be_absent(const LaunchOptions& options);

}  // namespace prun
