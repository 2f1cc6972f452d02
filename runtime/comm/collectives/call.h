// A collective call on the wire: the fingerprint that all members must share, its text, and its sizes.
#pragma once
#include <cstdint>
#include <string>

#include "comm/comm.h"

namespace prun {

// A kind that exists on the wire only: one message of Communicator::send_recv.
constexpr int kSendRecvKind = 15;

// Set in a fingerprint that has no count, such as that of a call whose members only enter a native barrier.
constexpr uint64_t kCountlessBit = 1u << 13;

// Packs kind, dtype, redop, root and rank_order, each only if the kind uses it, so that equal calls have equal
// fingerprints.
uint64_t pack_fingerprint(const CollCall& call);
// Returns the text of a peer's call, of which only fingerprint and count are known.
std::string describe_packed(uint64_t fingerprint, uint64_t count);

// Returns the size that selects the algorithm: the bytes of the largest buffer that the call names on any rank.
int64_t call_bytes(const CollCall& call, int size);
// Fills all of PreparedCall but the algorithm. Aborts on an invalid root or count (PRUN_CHECK).
PreparedCall prepare_call(const CollCall& call, int size);
// Returns the bytes that a rank sends under a schedule that sends nothing twice: an estimate for native collectives,
// which do not report theirs.
int64_t native_bytes_sent(const CollCall& call, int index, int size);

}  // namespace prun
