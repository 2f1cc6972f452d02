// One-sided transfers of one pair of ranks, over a transport's put, signal and wait_signal.
//
// The receiver offers a place in its window; the sender waits for the offer, puts the bytes there and raises a signal,
// for which the receiver waits. Offers and puts of a channel happen in order, so each side only counts them.
#pragma once
#include <memory>

#include "comm/comm.h"
#include "comm/transport/transport_session.h"

namespace prun {

// Null: the transport has no one-sided calls, on any rank.
std::unique_ptr<PutChannel> make_put_channel(TransportSession& session, int peer, int lane);

}  // namespace prun
