// Matching of messages: lanes, sequence numbers, flow control. Independent of descriptors.
//
//   small (<= eager)                        large (rendezvous)
//   sender              receiver            sender              receiver
//     | eager(payload) --> |                  | <------- posted(total) |   the receive is posted
//     |  window -= bytes   |                  | data(offset 0)     --> |   straight into its buffer
//     | <-- credit         |  consumed        | data(offset chunk) --> |
//
// A lane has at most `window` eager bytes unclaimed at the receiver, so early sends cannot exhaust its memory, and
// every connection is always read: simultaneous sends of both sides cannot block each other. The first pieces of large
// messages to a far peer are sent before `posted` arrives (ahead.cc).
//
// Not thread-safe: the context's lock guards all of it.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "frame.h"
#include "options.h"
#include "request.h"

namespace prun::socket {

class Connection;

struct Posted {
  uint32_t sequence;
  uint64_t bytes;
};

struct Unexpected {  // an eager message that arrived before its receive
  uint32_t sequence;
  uint64_t bytes;
  std::unique_ptr<char[]> data;
  bool arrived = false;
  Message* claimed = nullptr;  // the receive that was posted while the message was still arriving
};

// Pieces of a large message that arrived before its receive.
struct Early {
  struct Piece {
    uint64_t offset;
    uint32_t length;
    std::unique_ptr<char[]> data;
    bool arrived = false;
  };
  uint32_t sequence;
  uint64_t bytes;              // size of the whole message
  std::deque<Piece> pieces;    // pieces still buffered
  Message* claimed = nullptr;  // the receive that was posted while some pieces were still arriving
};

struct Lane {
  uint16_t id = 0;
  // Sender state.
  uint32_t next_send = 0;
  std::deque<Message*> waiting_credit;  // small messages
  std::deque<Message*> waiting_post;    // large messages whose receive is not posted yet
  std::deque<Message*> asked;           // large messages whose receive is posted
  std::deque<Posted> early_posts;       // receives that were posted before our send
  std::deque<Posted> sent_ahead;        // bytes of large messages sent before their receives were posted
  bool goes_ahead = false;              // the lane is in Peer::ahead
  uint32_t eager_sent = 0, eager_acknowledged = 0;
  // Receiver state. receives[i] has sequence first_receive + i; null once complete or dropped.
  uint32_t first_receive = 0;
  std::deque<Message*> receives;
  std::deque<Unexpected> unexpected;
  std::deque<Early> early;
  std::deque<Posted> announced;
  uint32_t eager_arrived = 0, eager_consumed = 0, eager_told = 0;

  uint32_t next_receive() const { return first_receive + static_cast<uint32_t>(receives.size()); }
};

struct OutFrame {
  FrameHeader header;
  Message* message = nullptr;  // owner of the payload; null = no owner, or its request was dropped
  const char* payload = nullptr;
  uint64_t written = 0;          // bytes of header and payload together
  std::unique_ptr<char[]> kept;  // copy of the payload, if the request was dropped while the payload was being written
};

struct Peer {
  int rank = -1;
  std::vector<std::unique_ptr<Connection>> connections;  // empty for this rank itself
  std::unordered_map<uint16_t, std::unique_ptr<Lane>> lanes;
  std::deque<OutFrame> outbox;  // small messages and control frames, in order, over the first connection
  std::deque<Lane*> large;      // lanes with `asked` messages, served round-robin chunk by chunk
  std::deque<Lane*> ahead;      // lanes with large messages that may be sent ahead, served round-robin
  uint64_t ahead_limit = 0;     // bytes of large messages that this peer may buffer unrequested; 0 = it is near
  uint64_t ahead_sent = 0;      // bytes sent to the peer under this limit that are still unclaimed there
  uint64_t ahead_kept = 0;      // bytes of the peer's messages buffered here
  bool dirty = false;           // has output
  bool said_goodbye = false;
  Goodbye goodbye = Goodbye::closed;
  int blamed = -1;  // the rank that its goodbye blames
  Failure gone;

  bool has_output() const { return !outbox.empty() || !large.empty(); }
};

class Matcher {
 public:
  Matcher(const Options& options, int rank, int ranks);
  ~Matcher();

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  std::vector<Peer>& peers() { return peers_; }

  void start(Request& request);  // receives first, then sends
  void drop(Request& request);   // detaches the caller's memory from all queues and connections
  // Announces sends that have waited long for their receive, so that a size mismatch is reported instead of hanging.
  void announce_waiting(Clock::time_point now);

  // Returns the destination of a frame's payload, for connections; a null `to` discards the payload. arrive throws
  // Failure for an invalid frame.
  struct Landing {
    char* to = nullptr;
    Message* message = nullptr;
  };
  Landing arrive(Peer& peer, const FrameHeader& header);
  void landed(Peer& peer, const FrameHeader& header, Message* message);
  bool next_frame(Peer& peer, bool first_connection, OutFrame* out);
  void written(OutFrame& frame);
  void lost(Peer& peer, const Failure& failure);  // fails all outstanding messages with `failure`
  void fail(Message* message, const Failure& failure);

  // Returns the peers with output, once each.
  std::vector<Peer*> take_dirty();
  bool has_dirty() const { return !dirty_.empty(); }
  void mark_dirty(Peer& peer);

  bool exchange_with_itself();               // moves a bounded number of bytes; returns whether more is left
  uint64_t ended() const { return ended_; }  // requests that have ended so far
  const Failure& first_failure() const { return first_failure_; }

 private:
  Lane& lane(Peer& peer, uint16_t id);
  void post_receive(Message& message);
  void post_send(Message& message);
  void asked(Message& message, uint64_t bytes);
  void release_eager(Peer& peer, Lane& lane);
  void consume(Peer& peer, Lane& lane, uint64_t bytes);
  void control(Peer& peer, Lane& lane, FrameKind kind, uint32_t sequence, uint64_t total);
  void complete(Message& message);
  void mismatch(Message& message, uint64_t theirs);
  Landing arrive_eager(Peer& peer, Lane& lane, const FrameHeader& header);
  Landing arrive_data(Peer& peer, Lane& lane, const FrameHeader& header);
  void arrive_posted(Peer& peer, Lane& lane, const FrameHeader& header);
  void arrive_announce(Peer& peer, Lane& lane, const FrameHeader& header);
  void landed_eager(Peer& peer, Lane& lane, const FrameHeader& header, Message* message);
  OutFrame next_piece(Lane& lane, Message& message, uint64_t most) const;
  void drop(Message& message);

  // Defined in ahead.cc.
  void may_go_ahead(Peer& peer, Lane& lane);
  bool next_ahead(Peer& peer, OutFrame* out);
  void asked_after_all(Peer& peer, Lane& lane, uint32_t sequence);
  Landing arrive_early(Peer& peer, Lane& lane, const FrameHeader& header);
  void landed_early(Peer& peer, Lane& lane, const FrameHeader& header);
  bool take_early(Message& message);
  void forget_arriving(Peer& peer, Lane& lane);

  const uint32_t eager_, chunk_, window_;
  const uint64_t most_kept_;  // limit of buffered unrequested bytes per peer
  const int rank_;
  std::vector<Peer> peers_;
  std::vector<Peer*> dirty_;
  uint64_t ended_ = 0;
  uint64_t waiting_posts_ = 0;
  Failure first_failure_;
};

}  // namespace prun::socket
