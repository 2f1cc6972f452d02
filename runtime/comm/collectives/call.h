// A collective call on the wire: a fingerprint that all members must agree on, its text, and sizes.
#pragma once
#include <cstdint>
#include <string>

#include "comm/comm.h"

namespace prun {

// A kind that exists on the wire only: one message of Communicator::send_recv.
constexpr int kSendRecvKind = 15;

// Set in a fingerprint that comes without a count, as that of a call whose members only meet in a native barrier.
constexpr uint64_t kCountlessBit = 1u << 13;

// kind, dtype, redop, root and rank_order, each only where the kind has it, so that equal calls have equal
// fingerprints.
uint64_t pack_fingerprint(const CollCall& call);
// The text of a call known by its fingerprint and count only, as it came from a peer.
std::string describe_packed(uint64_t fingerprint, uint64_t count);

// Bytes that decide between algorithms: of the largest buffer that the call names on any rank.
int64_t call_bytes(const CollCall& call, int size);
// All of PreparedCall but the algorithm. Root and counts that make no sense abort (PRUN_CHECK).
PreparedCall prepare_call(const CollCall& call, int size);
// Bytes that a rank hands to others under a schedule that sends nothing twice: an estimate for native collectives,
// which do not say.
int64_t native_bytes_sent(const CollCall& call, int index, int size);

}  // namespace prun
