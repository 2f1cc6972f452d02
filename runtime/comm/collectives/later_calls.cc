// Hints between neighbours of the ring, in addition to calls that compare later (Ring::later).
//
// If the previous member sends data to this one in a call, its frame identifies the call. Otherwise a hint does, which
// a member sends only after waiting for long, so a call that succeeds sends none. A receive for hints is always posted;
// a member ends its hints by a frame once a call compares the ring or sends data that way.
#include <utility>

#include "comm/collectives/wire.h"

namespace prun {

void Wire::compare_later(bool from_previous, bool to_next, int64_t first_bytes) {
  if (ring_ != Ring::later) return;
  hints_.first_bytes = first_bytes;
  end_hints(to_next, from_previous);
  hints_.to_next = !to_next;
  if (from_previous || hints_.from_previous) return;
  hints_.from_previous = true;
  listen();
}

void Wire::listen() {
  hints_.in.header.magic = 0;
  transfer(hints_.hearing, true, previous(), &hints_.in, kFrameBytes);
}

void Wire::tell_next(uint64_t what) {
  wait_part(hints_.telling);
  hints_.out.header = header_;
  hints_.out.header.bytes = what;
  hints_.out.header.inline_bytes = 0;
  transfer(hints_.telling, false, next(), &hints_.out, kFrameBytes);
}

// Reads the previous member's hints and throws if it is in another call. Returns true once that member has sent
// anything but hints; with `to_the_end`, waits for that.
bool Wire::hear(bool to_the_end) {
  while (true) {
    if (hints_.hearing.request) {
      prun_result result = empty_result();
      const prun_status status =
          to_the_end ? wait_for(hints_.hearing, false, result) : route_.test(hints_.hearing.request, result);
      if (status == PRUN_AGAIN && !to_the_end) return false;
      if (status != PRUN_OK) failed(hints_.hearing, status, result);
    }
    const FrameHeader& theirs = hints_.in.header;
    check_start(theirs, previous());
    const bool calls = theirs.fingerprint != kSendRecvKind && ring_ != Ring::none;
    if (calls && (theirs.bytes < kRunEnd || !same_calls(theirs))) throw_difference(previous(), theirs, "");
    if (theirs.bytes != kHint) return true;
    listen();
  }
}

// Called when a call takes long: sends a hint to the next member, and reads hints of the previous one.
void Wire::look_around() {
  if (!std::exchange(hints_.told, true)) {
    if (hints_.to_next) {
      tell_next(kHint);
    } else if (framed_out_[next()] == 0) {
      // The next member waits for this call's frame: send it now; its payload follows separately.
      framed_out_[next()] = 1;
      tell_next(static_cast<uint64_t>(hints_.first_bytes));
    }
  }
  if (hints_.from_previous) hear(false);
}

void Wire::end_hints(bool to_next, bool from_previous) {
  if (to_next && std::exchange(hints_.to_next, false)) tell_next(kRunEnd);
  if (!from_previous || !hints_.from_previous) return;
  hear(true);
  if (hints_.in.header.bytes != kRunEnd || hints_.in.header.sequence != header_.sequence)
    throw_difference(previous(), hints_.in.header, "");
  hints_.from_previous = false;
}

// Receives a send_recv message from the previous member. Posts the receive of its payload before that of further hints.
void Wire::recv_behind_hints(const Arrival& arrival) {
  hear(true);
  in_[arrival.from] = hints_.in;
  check_frame(arrival);
  if (arrival.bytes > static_cast<int64_t>(kInlineBytes))
    transfer(hints_.payload, true, arrival.from, arrival.data, arrival.bytes);
  listen();
  wait_part(hints_.payload);
}

void Wire::close() {
  header_.fingerprint = last_.fingerprint;
  header_.count = last_.count;
  header_.counts_hash = 0;
  header_.sequence = last_sequence_ + 1;
  header_.uncompared = uncompared_hash_;
  ring_ = Ring::apart;
  end_hints(true, true);
  wait_part(hints_.telling);
}

}  // namespace prun
