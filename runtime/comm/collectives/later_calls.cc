// What neighbours of the ring tell each other beside calls that compare later (Ring::later).
//
// Where the previous member sends this one the data of a call, its frame says what it is in. Elsewhere a hint says it,
// and comes only from a member that has waited for long: in a call that goes well nothing is sent. A receive for hints
// stands ready all the time; a member ends its hints by a frame, once a call compares the ring or sends data that way.
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

// Takes what the previous member has told, and throws where it is in another call. True: it has sent something else
// than hints. `to_the_end` waits for that.
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

// A call has taken long: says so to the next member, and looks what the previous one is in.
void Wire::look_around() {
  if (!std::exchange(hints_.told, true)) {
    if (hints_.to_next) {
      tell_next(kHint);
    } else if (framed_out_[next()] == 0) {
      // It waits for the frame of this call: here it is, its payload comes by itself.
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

// A message from the previous member that is no collective's: its payload is asked for before further hints are.
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
