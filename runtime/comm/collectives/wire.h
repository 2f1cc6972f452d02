// Messages of one communicator: each call's first message to a peer is preceded by a frame that says which call it is.
//
// Frames have a fixed size, so that ranks in different calls can still read each other's; small payloads ride in them.
// In every collective each member sends its first frame to the next member of the group, whatever the algorithm: the
// group is a ring, so if calls differ anywhere, two neighbours differ and one of them says so at once.
//
// Calls that hold nobody back (Ring::later) do without: who receives compares what it gets, a sender waits for nobody.
// The ring is then compared by a later call, every kRingEvery calls at the latest, for which every frame has a hash of
// the calls since. A member that waits for long tells the next one what it is in, and looks what the previous one has
// told: so members that wait for each other find that they differ. Such hints, which the other may not look at, are the
// only messages between two neighbours that do not exchange data in a run of such calls; a frame ends them with the
// run.
//
// A larger payload is a message of its own behind its frame, because a receive names its size and its place beforehand:
// one message for both would be copied once more, and ranks in different calls could not read it.
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
  uint64_t bytes;  // of the payload that follows or rides along
  uint32_t sender;
  uint32_t uncompared;         // hash of the calls since the ring was last compared
  PastCall past[kNamedCalls];  // past[s % kNamedCalls] is call s, for the last calls before this one
};
constexpr size_t kFrameBytes = 320;
constexpr size_t kInlineBytes = kFrameBytes - sizeof(FrameHeader);
struct alignas(64) CallFrame {
  FrameHeader header;
  char payload[kInlineBytes];
};
static_assert(sizeof(FrameHeader) == 128 && sizeof(CallFrame) == kFrameBytes);

// In place of `bytes`: nothing follows, this is only what the sender is in; the same, and no more hints come.
constexpr uint64_t kHint = UINT64_MAX, kRunEnd = UINT64_MAX - 1;

class Wire {
 public:
  // How neighbours compare calls. within: the algorithm's first batch sends to the next member and receives from the
  // previous one. apart: it may not, so frames without payload are exchanged. later: a following call does it. none: no
  // collective (send_recv).
  enum class Ring { within, apart, later, none };

  // `ranks`: the members, of the job; `index` is this one. `group` tells groups apart in frames. `far`: they are on
  // several hosts.
  Wire(Route route, std::vector<int> ranks, int index, uint64_t group, bool far = false);

  // Starts a call, the `sequence`th of the group.
  void begin(const PreparedCall& call, uint64_t sequence, Ring ring);
  // Of a call of Ring::later, before anything else: whether the previous member sends to this one, and this one to the
  // next, `first_bytes` in their first message.
  void compare_later(bool from_previous, bool to_next, int64_t first_bytes);
  // Queue messages; nothing moves before post(). One message a peer and direction in a batch that frames it.
  // `data` stays untouched until the ticket has been waited for.
  void send(int to, const void* data, int64_t bytes);
  void recv(int from, void* data, int64_t bytes);
  int64_t post();             // returns a ticket; at most kInFlight at a time, and 2 * ahead() more between hosts
  void wait(int64_t ticket);  // of this call, in any order, more than once is allowed
  void flush() { wait(post()); }
  void finish();   // waits for all; checks that neighbours have compared calls
  void close();    // before the end: of what later calls would have compared
  void give_up();  // after an exception: nothing of this call touches memory any more

  int index() const { return index_; }
  int size() const { return ranks_.size(); }
  const std::vector<int>& ranks() const { return ranks_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  void add_bytes_sent(int64_t bytes) { bytes_sent_ += bytes; }
  // "all_reduce f32[8] sum of ranks 0, 1, 2": what an error says was going on.
  std::string doing() const;
  // The error for a member whose call is another one.
  [[noreturn]] void throw_mismatch(int member, uint64_t fingerprint, uint64_t count, uint64_t sequence,
                                   const std::string& extra) const;

  // A message of later_calls.cc is on its way, or may be: close() is needed.
  bool compares_later() const { return hints_.to_next || hints_.from_previous || hints_.telling.request; }

  // Chunks that an algorithm has on their way. Inside a host two: more would only leave the cache. Between hosts as
  // many as a line holds whose round trip is long: at 1 Gbit/s and 20 ms that is 2.5 MB.
  int ahead() const { return far_ ? kFarAhead : 2; }

  static constexpr int kInFlight = 8, kFarAhead = 16;
  static constexpr int kRingEvery = 128;  // calls after each other of Ring::later: the last of them compares

 private:
  // A batch is posted as up to three requests, so that each frame is looked at as soon as it can be: waiting for a
  // payload, or for the frame of a rank that is in another call, must not hide the neighbour's frame that says so. What
  // is sent goes with the last of them, all at once: a frame and its payload are then one message of the transport's.
  enum Stage { kRing, kFrames, kPayload, kStages };
  struct Arrival {  // of a framed message
    int from;
    void* data;
    int64_t bytes;
  };
  struct Part {
    Route::Request request;
    std::vector<Arrival> arrivals;
    std::vector<int> sources, targets;  // members that it receives from, and sends to
    int64_t bytes = 0;
    void clear();
  };
  struct Batch {
    int64_t ticket = -1;
    Part parts[kStages];
  };
  Batch& open_batch();  // the one that messages are queued in
  void add(Stage stage, bool is_recv, int member, void* data, int64_t bytes);
  int previous() const { return (index_ + size() - 1) % size(); }
  int next() const { return (index_ + 1) % size(); }
  void wait_part(Part& part);
  prun_status wait_for(Part& part, bool looks_around, prun_result& result);
  void transfer(Part& part, bool is_recv, int member, void* data, int64_t bytes);  // one message, beside the batches
  void check_frame(const Arrival& arrival);
  void check_start(const FrameHeader& header, int member) const;  // throws unless it is a header of this version
  bool same_calls(const FrameHeader& theirs) const;               // as far as both are known

  // What neighbours tell each other beside calls that compare later (later_calls.cc).
  struct Hints {
    bool to_next = false, from_previous = false;  // hints may be on their way, until a frame that ends them
    bool told = false;                            // in this call
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
  std::vector<int> missing(const Part& part) const;  // ranks whose payload has not come, as far as frames tell
  std::string awaited(const Part& part, const prun_result& result) const;

  Route route_;
  std::vector<int> ranks_;
  int index_;
  FrameHeader header_{};
  Ring ring_ = Ring::none;
  PastCall last_{};  // the call before this one, and its sequence
  uint64_t last_sequence_ = UINT64_MAX;
  uint32_t uncompared_hash_ = 0;
  int uncompared_ = 0;  // calls of Ring::later since the ring was last compared
  std::vector<CallFrame> out_, in_;
  std::vector<char> framed_out_, framed_in_;  // by member: this call's frame has been queued
  bool far_;
  std::vector<Batch> batches_;
  std::vector<prun_p2p> receives_[kStages], sends_;  // of the open batch; the last stage posts the sends
  Hints hints_;
  std::vector<Arrival> behind_hints_;  // of a send and receive
  int64_t next_ticket_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace prun
