// Which message goes where: lanes, sequence numbers, flow control. Knows nothing of descriptors.
//
// Small messages (eager) go out at once while at most `window` bytes of a lane lie unasked-for at the receiver, who
// returns credit as it consumes them. Larger ones wait until the receiver says that the receive is posted, and then
// land directly in its buffer. So no amount of early sends makes a receiver buffer more than a window per lane, and
// nobody ever stops reading a connection: sends of both sides at once cannot block each other.
// To a peer that is far away the first pieces of large messages go out unasked, too (ahead.cc).
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
  Message* claimed = nullptr;  // the receive that was posted while it was still arriving
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
  uint64_t bytes;              // of the whole message
  std::deque<Piece> pieces;    // that are still kept
  Message* claimed = nullptr;  // the receive that was posted while some were still arriving
};

struct Lane {
  uint16_t id = 0;
  // Sending.
  uint32_t next_send = 0;
  std::deque<Message*> waiting_credit;  // small
  std::deque<Message*> waiting_post;    // large, the receive is not posted yet
  std::deque<Message*> asked;           // large, the receiver waits for them
  std::deque<Posted> early_posts;       // receives that were posted before our send
  std::deque<Posted> sent_ahead;        // bytes of large messages that went out before their receives were posted
  bool goes_ahead = false;              // is in the peer's list of those that may send some
  uint32_t eager_sent = 0, eager_acknowledged = 0;
  // Receiving. receives[i] has sequence first_receive + i; null once complete or dropped.
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
  Message* message = nullptr;  // whose payload it carries; null: none, or its request was dropped
  const char* payload = nullptr;
  uint64_t written = 0;          // of header and payload together
  std::unique_ptr<char[]> kept;  // the payload, once the request has been dropped while it was being written
};

struct Peer {
  int rank = -1;
  std::vector<std::unique_ptr<Connection>> connections;  // none: this rank itself
  std::unordered_map<uint16_t, std::unique_ptr<Lane>> lanes;
  std::deque<OutFrame> outbox;  // small messages and control frames, in order, over the first connection
  std::deque<Lane*> large;      // lanes with `asked` messages; take turns chunk by chunk
  std::deque<Lane*> ahead;      // lanes with large messages that may go out unasked; take turns likewise
  uint64_t ahead_limit = 0;     // bytes of large messages that may lie unasked-for at this peer; 0: it is near
  uint64_t ahead_sent = 0;      // that do
  uint64_t ahead_kept = 0;      // that lie here, of its
  bool dirty = false;           // has something to write
  bool said_goodbye = false;
  Goodbye goodbye = Goodbye::closed;
  int blamed = -1;  // by its goodbye
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
  void drop(Request& request);   // from now on nothing touches the caller's memory
  // Announces sends that have long waited for their receive, so that a wrong size is found and not waited for.
  void announce_waiting(Clock::time_point now);

  // For connections. Where a frame's payload goes; `to` is null where it is to be thrown away. Throws Failure when a
  // frame makes no sense.
  struct Landing {
    char* to = nullptr;
    Message* message = nullptr;
  };
  Landing arrive(Peer& peer, const FrameHeader& header);
  void landed(Peer& peer, const FrameHeader& header, Message* message);
  bool next_frame(Peer& peer, bool first_connection, OutFrame* out);
  void written(OutFrame& frame);
  void lost(Peer& peer, const Failure& failure);  // fails all that is outstanding with it
  void fail(Message* message, const Failure& failure);

  // Peers with something to write, once each.
  std::vector<Peer*> take_dirty();
  bool has_dirty() const { return !dirty_.empty(); }
  void mark_dirty(Peer& peer);

  bool exchange_with_itself();               // some of it; returns whether there is more
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

  // ahead.cc
  void may_go_ahead(Peer& peer, Lane& lane);
  bool next_ahead(Peer& peer, OutFrame* out);
  void asked_after_all(Peer& peer, Lane& lane, uint32_t sequence);
  Landing arrive_early(Peer& peer, Lane& lane, const FrameHeader& header);
  void landed_early(Peer& peer, Lane& lane, const FrameHeader& header);
  bool take_early(Message& message);
  void forget_arriving(Peer& peer, Lane& lane);

  const uint32_t eager_, chunk_, window_;
  const uint64_t most_kept_;  // of what comes ahead, of a peer
  const int rank_;
  std::vector<Peer> peers_;
  std::vector<Peer*> dirty_;
  uint64_t ended_ = 0;
  uint64_t waiting_posts_ = 0;
  Failure first_failure_;
};

}  // namespace prun::socket
