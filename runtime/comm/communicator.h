// The communicator of a transport: native collectives where the plugin has them, else the core's algorithms.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/link.h"
#include "comm/wire.h"

namespace prun {

// `lane` of the transport, agreed on by the members and theirs alone.
std::unique_ptr<Communicator> make_communicator(Link& link, const std::vector<int>& ranks, int index, int lane,
                                                const std::string& algorithm);
// A group of one: no messages, no transport.
std::unique_ptr<Communicator> make_lone_communicator();

// The first lane from `next_free` on that no member uses yet. Collective over the members.
int agree_on_lane(Link& link, const std::vector<int>& ranks, int index, int user_lane, int next_free);

}  // namespace prun
