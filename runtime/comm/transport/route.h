// Which transport leads to which member of a group: one for all, or one inside the host and another between hosts. Each
// has a tag of its own (prun_p2p), which the group's members agreed on.
//
// With two transports a request has two parts, and whoever waits for one must give the other its turns, or ranks that
// wait in different orders would wait for each other. Parts take turns of a test each (10 ms at most).
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

  // A batch under way: at most one request of each transport.
  struct Request {
    prun_req* parts[2] = {};
    explicit operator bool() const { return parts[0] != nullptr || parts[1] != nullptr; }
  };
  // Starts messages to and from ranks of the job; `ops` are used up. Parts that have started stay in `request`, also
  // after a failure.
  prun_status batch(std::vector<prun_p2p>& ops, Request& request, prun_result& result);
  // As TransportSession::wait: PRUN_AGAIN at the deadline, with the parts that have not ended left in `request`.
  prun_status wait(Request& request, int64_t bytes, prun_result& result);
  // As prun_transport's test, of a request with one part.
  prun_status test(Request& request, prun_result& result);
  void drain(const std::vector<Request>& requests);

  bool queue_ordered() const;  // any of them
  // The session that failed last.
  const TransportSession& failed() const { return *failed_; }

 private:
  struct Leg {
    TransportSession* session = nullptr;
    int tag = 0;
    std::vector<prun_p2p> ops;  // of one batch, kept for its capacity
  };
  prun_status start(int leg, std::vector<prun_p2p>& ops, Request& request, prun_result& result);
  prun_status wait_in_turns(Request& request, int64_t bytes, prun_result& result);

  Leg legs_[2];  // the second is empty where one transport leads to all
  const TransportSession* failed_ = legs_[0].session;
};

}  // namespace prun
