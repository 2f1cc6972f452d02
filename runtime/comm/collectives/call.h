// What a collective call is on the wire: sizes, a fingerprint that all members must agree on, and its text.
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

bool is_vector(CollKind kind);  // all_gather_v, all_to_all_v
bool is_reduction(CollKind kind);
bool is_rooted(CollKind kind);

// The count that must be equal on all members; for all_gather_v the sum of counts, for all_to_all_v 0.
uint64_t agreed_count(const CollCall& call, int size);
// Of `counts` where all members must pass the same ones, else 0.
uint64_t counts_hash(const CollCall& call, int size);

// Bytes that decide between algorithms: of the largest buffer that the call names on any rank.
int64_t call_bytes(const CollCall& call, int size);
// Bytes that a rank hands to others under a schedule that sends nothing twice; for native collectives, which do not
// say.
int64_t native_bytes_sent(const CollCall& call, int index, int size);

// PRUN_CHECK of root, counts and pointers.
void check_call(const CollCall& call, int size);

}  // namespace prun
