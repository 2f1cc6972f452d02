// The transport that reaches each member of a group: one for all, or one inside the host and another between hosts.
// Each has its own tag (prun_p2p), on which the group's members agreed.
//
// With two transports a request has two parts. A thread that waits for one must also make progress on the other,
// otherwise ranks that wait in different orders would deadlock. The parts are tested alternately, 10 ms at most each.
#pragma once
#include <vector>

#include "comm/transport/transport_session.h"

namespace prun {

class Route {
 public:
  Route(TransportSession& only, int tag) : legs_{{&only, tag, {}}, {}} {}
  // Ranks that `inside` connects are reached by it, all others by `between`.
  Route(TransportSession& inside, int inside_tag, TransportSession& between, int between_tag)
      : legs_{{&inside, inside_tag, {}}, {&between, between_tag, {}}} {}

  // A batch in flight: at most one request per transport.
  struct Request {
    prun_req* parts[2] = {};
    explicit operator bool() const { return parts[0] != nullptr || parts[1] != nullptr; }
  };
  // Starts messages to and from ranks of the job and consumes `ops`. Started parts remain in `request`, also after a
  // failure.
  prun_status batch(std::vector<prun_p2p>& ops, Request& request, prun_result& result);
  // Like TransportSession::wait: PRUN_AGAIN at the deadline, with the parts that have not ended left in `request`.
  prun_status wait(Request& request, int64_t bytes, prun_result& result);
  // Tests a request with one part, as prun_transport's test does.
  prun_status test(Request& request, prun_result& result);
  void drain(const std::vector<Request>& requests);

  bool queue_ordered() const;  // true if any of them is
  // Returns the session that failed last.
  const TransportSession& failed() const { return *failed_; }

 private:
  struct Leg {
    TransportSession* session = nullptr;
    int tag = 0;
    std::vector<prun_p2p> ops;  // messages of one batch; persistent, to keep its capacity
  };
  prun_status start(int leg, std::vector<prun_p2p>& ops, Request& request, prun_result& result);
  prun_status wait_in_turns(Request& request, int64_t bytes, prun_result& result);

  Leg legs_[2];  // the second is empty if one transport reaches all
  const TransportSession* failed_ = legs_[0].session;
};

}  // namespace prun
