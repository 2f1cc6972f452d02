// Messages of one communicator. In each call the first message to a peer begins with a frame that identifies the call:
//
//     frame (kFrameBytes) = header | payload of at most kInlineBytes        payload, if it is larger
//
// Frames have a fixed size, so that ranks in different calls can still read each other's. A larger payload is a message
// of its own, because a receive names its size and destination beforehand: one message for both would need another
// copy, and ranks in different calls could not read it.
//
// In every collective each member sends its first frame to the next member of the group, whatever the algorithm. The
// group is a ring, so if calls differ anywhere, two neighbours differ, and one of them reports it at once.
//
// Calls that make no sender wait (Ring::later) skip this: a receiver only checks the frames that come with its data. A
// following call compares the ring, after kRingEvery calls at the latest; every frame carries a hash of the calls
// since. A member that waits for long sends the next one a hint that names its call, and reads the previous member's,
// so that members that wait for each other detect a difference. Hints, which the receiver may ignore, are the only
// messages between neighbours that exchange no data in a run of such calls; a frame ends both the hints and the run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/collectives/call.h"
#include "comm/transport/route.h"

namespace prun {

struct PastCall {
  uint64_t fingerprint, count;
  bool operator==(const PastCall&) const = default;
};
constexpr uint64_t kNamedCalls = 4;
struct FrameHeader {
  uint32_t magic;
  uint16_t version, inline_bytes;
  uint64_t group, sequence, fingerprint, count, counts_hash;
  uint64_t bytes;  // size of the payload, which is in this frame or follows it
  uint32_t sender;
  uint32_t uncompared;         // hash of the calls since the last comparison of the ring
  PastCall past[kNamedCalls];  // past[s % kNamedCalls] is call s, for the last calls before this one
};
constexpr size_t kFrameBytes = 320;
constexpr size_t kInlineBytes = kFrameBytes - sizeof(FrameHeader);
struct alignas(64) CallFrame {
  FrameHeader header;
  char payload[kInlineBytes];
};
static_assert(sizeof(FrameHeader) == 128 && sizeof(CallFrame) == kFrameBytes);

// Values of `bytes` in frames without a payload. kHint: names the sender's current call. kRunEnd: likewise, and no hint
// follows.
constexpr uint64_t kHint = UINT64_MAX, kRunEnd = UINT64_MAX - 1;

class Wire {
 public:
  // The comparison of calls by neighbours. within: the algorithm's first batch sends to the next member and receives
  // from the previous one. apart: it may not, so frames without payload are exchanged. later: a following call
  // compares. none: not a collective (send_recv).
  enum class Ring { within, apart, later, none };

  // `ranks`: the members, in the job's numbers; `index` is this one. `group` distinguishes groups in frames. `far`: the
  // members are on several hosts.
  Wire(Route route, std::vector<int> ranks, int index, uint64_t group, bool far = false);

  // Starts call number `sequence` of the group.
  void begin(const PreparedCall& call, uint64_t sequence, Ring ring);
  // Called first by an algorithm with Ring::later. The arguments state whether the previous member sends data to this
  // one, and this one to the next, with `first_bytes` in their first message.
  void compare_later(bool from_previous, bool to_next, int64_t first_bytes);
  // Queue messages, which start with post(). A batch that frames a peer's message has at most one message for that peer
  // and direction. `data` must be unchanged until the ticket has been waited for.
  void send(int to, const void* data, int64_t bytes);
  void recv(int from, void* data, int64_t bytes);
  int64_t post();             // returns a ticket; at most kInFlight in flight, and 2 * kFarAhead more between hosts
  void wait(int64_t ticket);  // accepts tickets of this call in any order, also repeatedly
  void flush() { wait(post()); }
  void finish();   // waits for all messages; checks that neighbours have compared calls
  void close();    // before destruction: compares the calls that a later call would have compared
  void give_up();  // after an exception: afterwards nothing of this call accesses memory

  int index() const { return index_; }
  int size() const { return ranks_.size(); }
  const std::vector<int>& ranks() const { return ranks_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  void add_bytes_sent(int64_t bytes) { bytes_sent_ += bytes; }
  // Returns "all_reduce f32[8] sum of ranks 0, 1, 2", the activity that an error names.
  std::string doing() const;
  // Throws the error for a member that made another call.
  [[noreturn]] void throw_mismatch(int member, uint64_t fingerprint, uint64_t count, uint64_t sequence,
                                   const std::string& extra) const;

  // A message of later_calls.cc may be in flight, so close() is needed.
  bool compares_later() const { return hints_.to_next || hints_.from_previous || hints_.telling.request; }

  // Chunks that an algorithm has in flight. Inside a host 2, because more would exceed the cache. Between hosts enough
  // for a link with a long round trip: at 1 Gbit/s and 20 ms, 2.5 MB.
  int ahead() const { return far_ ? kFarAhead : 2; }

  static constexpr int kInFlight = 8, kFarAhead = 16;
  static constexpr int kRingEvery = 128;  // consecutive calls of Ring::later, of which the last compares

 private:
  // A batch is posted as up to three requests, so that each frame is checked as soon as it arrives: waiting for a
  // payload, or for the frame of a rank in another call, must not delay the neighbour's frame that reveals the
  // difference. All sends are in the last request, so that the transport sends a frame and its payload as one message.
  enum Stage { kRing, kFrames, kPayload, kStages };
  struct Arrival {  // start of a framed message
    int from;
    void* data;
    int64_t bytes;
  };
  struct Part {
    Route::Request request;
    std::vector<Arrival> arrivals;
    std::vector<int> sources, targets;  // members that it receives from and sends to
    int64_t bytes = 0;
    void clear();
  };
  struct Batch {
    int64_t ticket = -1;
    Part parts[kStages];
  };
  Batch& open_batch();  // the batch in which messages are queued
  void add(Stage stage, bool is_recv, int member, void* data, int64_t bytes);
  int previous() const { return (index_ + size() - 1) % size(); }
  int next() const { return (index_ + 1) % size(); }
  void wait_part(Part& part);
  prun_status wait_for(Part& part, bool looks_around, prun_result& result);
  void transfer(Part& part, bool is_recv, int member, void* data, int64_t bytes);  // one message, outside the batches
  void check_frame(const Arrival& arrival);
  void check_start(const FrameHeader& header, int member) const;  // throws unless it is a header of this version
  bool same_calls(const FrameHeader& theirs) const;               // as far as both name them

  // Messages between neighbours in addition to calls that compare later (later_calls.cc).
  struct Hints {
    bool to_next = false, from_previous = false;  // hints may be in flight, until a frame that ends them
    bool told = false;                            // whether a hint was sent in this call
    int64_t first_bytes = 0;
    Part telling, hearing, payload;
    CallFrame out{}, in{};
  };
  void look_around();
  void tell_next(uint64_t what);
  void listen();
  bool hear(bool to_the_end);
  void end_hints(bool to_next, bool from_previous);
  void recv_behind_hints(const Arrival& arrival);

  void remember(const PastCall& call, uint64_t sequence, Ring ring);
  [[noreturn]] void throw_difference(int member, const FrameHeader& theirs, const std::string& extra) const;
  [[noreturn]] void failed(const Part& part, prun_status status, const prun_result& result);
  std::vector<int> missing(const Part& part) const;  // sources without an arrived frame
  std::string awaited(const Part& part, const prun_result& result) const;

  Route route_;
  std::vector<int> ranks_;
  int index_;
  FrameHeader header_{};
  Ring ring_ = Ring::none;
  PastCall last_{};  // the call before this one, and its sequence
  uint64_t last_sequence_ = UINT64_MAX;
  uint32_t uncompared_hash_ = 0;
  int uncompared_ = 0;  // calls of Ring::later since the last comparison of the ring
  std::vector<CallFrame> out_, in_;
  std::vector<char> framed_out_, framed_in_;  // by member: whether this call's frame has been queued
  bool far_;
  std::vector<Batch> batches_;
  std::vector<prun_p2p> receives_[kStages], sends_;  // messages of the open batch; the last stage posts the sends
  Hints hints_;
  std::vector<Arrival> behind_hints_;  // messages of a send_recv
  int64_t next_ticket_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace prun
