// The exchange before connecting: every rank's address, and whether all ranks run the same thing.
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/transport/transport_session.h"

namespace prun {

// Exchanges addresses through the bootstrap. Throws Error(join) naming the ranks whose ABI, plugin, version, build or
// options differ; then connects, and throws Error(transport) naming who is missing at the deadline.
// Only the session's members are compared and connected, but all ranks of the job must call; those without a session
// call join_without.
void join_and_connect(TransportSession& session, const WorldOptions& options, Bootstrap& bootstrap);
inline void join_without(Bootstrap& bootstrap) { bootstrap.all_gather(""); }

// Seconds that a rank waits for the next one to connect: `deadline_s`, and longer where more than 16 ranks share a
// core, since each answers only in its turn.
double connecting_deadline_s(double deadline_s, double cores_per_rank);

// The GNU build id of the object that holds this address, in hex; "" if it was linked without one.
std::string build_id_of(const void* address);

}  // namespace prun
