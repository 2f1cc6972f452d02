// The communicator of a transport: native collectives where the plugin has them, else the core's algorithms.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/algorithm.h"
#include "comm/collectives/wire.h"
#include "comm/transport/transport_session.h"

namespace prun {

// Tells groups apart in frames.
uint64_t group_hash(const std::vector<int>& ranks, int lane);
// What the frames of a call say.
FrameHeader header_of(const CollCall& call, int size, uint64_t sequence);

// `lane` of the transport, agreed on by the members and theirs alone.
std::unique_ptr<Communicator> make_communicator(Link& link, const std::vector<int>& ranks, int index, int lane,
                                                const std::string& algorithm);
// A group of one: no messages, no transport.
std::unique_ptr<Communicator> make_lone_communicator();

// The first of `count` lanes of the transport that no member uses yet. Collective over the members.
int agree_on_lanes(Link& link, const std::vector<int>& ranks, int index, int user_lane, int count);

}  // namespace prun
