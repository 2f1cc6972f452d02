// Messages of one communicator: each call's first message to a peer is preceded by a frame that says which call it is.
//
// Frames have a fixed size, so that ranks in different calls can still read each other's; small payloads ride in them.
// In every collective each member sends its first frame to the next member of the group, whatever the algorithm: the
// group is a ring, so if calls differ anywhere, two neighbours differ and one of them says so at once.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/collectives/call.h"
#include "comm/transport/route.h"

namespace prun {

struct FrameHeader {
  uint32_t magic;
  uint16_t version, inline_bytes;
  uint64_t group, sequence, fingerprint, count, counts_hash;
  uint64_t bytes;  // of the payload that follows or rides along
  uint32_t sender, padding;
};
constexpr size_t kFrameBytes = 256;
constexpr size_t kInlineBytes = kFrameBytes - sizeof(FrameHeader);
struct alignas(64) CallFrame {
  FrameHeader header;
  char payload[kInlineBytes];
};
static_assert(sizeof(FrameHeader) == 64 && sizeof(CallFrame) == kFrameBytes);

class Wire {
 public:
  // within: the algorithm's first batch sends to the next member and receives from the previous one. apart: it may not,
  // so frames without payload are exchanged. none: no collective (send_recv).
  enum class Ring { within, apart, none };

  Wire(Route route, std::vector<int> ranks, int index, uint64_t group);

  // Starts a call; what it is stands in `header` (fingerprint, count, counts_hash, sequence).
  void begin(const FrameHeader& header, Ring ring);
  // Queue messages; nothing moves before post(). One message a peer and direction in a batch that frames it.
  // `data` stays untouched until the ticket has been waited for.
  void send(int to, const void* data, int64_t bytes);
  void recv(int from, void* data, int64_t bytes);
  int64_t post();             // returns a ticket; at most kInFlight at a time
  void wait(int64_t ticket);  // of this call, in any order, more than once is allowed
  void flush() { wait(post()); }
  void finish();   // waits for all; checks that neighbours have compared calls
  void give_up();  // after an exception: nothing of this call touches memory any more

  int index() const { return index_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  void add_bytes_sent(int64_t bytes) { bytes_sent_ += bytes; }
  // "all_reduce f32[8] sum of ranks 0, 1, 2": what an error says was going on.
  std::string doing() const;
  // The error for a member whose call is another one.
  [[noreturn]] void throw_mismatch(int member, uint64_t fingerprint, uint64_t count, uint64_t sequence,
                                   const std::string& extra) const;

  static constexpr int kInFlight = 8;

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
  struct Queue {  // not yet posted
    std::vector<prun_p2p> receives, sends;
    std::vector<Arrival> arrivals;
    std::vector<int> sources;  // members that it receives from
    int64_t bytes = 0;
    void clear();
  };
  struct Request {
    Route::Request req;
    std::vector<Arrival> arrivals;
    std::vector<int> sources;
    int64_t bytes = 0;
  };
  struct Batch {
    int64_t ticket = -1;
    Request stages[kStages];
  };
  void add(Stage stage, bool is_recv, int member, void* data, int64_t bytes);
  void post_stage(Queue& queue, Request& request);
  void wait_stage(Request& request);
  void check_frame(const Arrival& arrival);
  [[noreturn]] void failed(Request& request, prun_status status, prun_result& result);
  std::string awaited(const Request& request, const prun_result& result) const;

  Route route_;
  std::vector<int> ranks_;
  int index_;
  FrameHeader header_{};
  Ring ring_ = Ring::none;
  std::vector<CallFrame> out_, in_;
  std::vector<char> framed_out_, framed_in_;  // per member, in this call
  Queue queues_[kStages];
  Batch batches_[kInFlight];
  int64_t next_ticket_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace prun
