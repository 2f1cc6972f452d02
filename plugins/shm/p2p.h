// Point to point: batches, matching, and the three paths of a message.
//
//   eager    <= 16 KiB       sender -- record with payload --> receiver                   sender done at once
//   direct   in an arena     sender -- record (offset) -----> receiver copies             <-- answer: sender done
//   bounce   other memory    sender -- record --------------> receiver posts, <-- go      chunks of 64 KiB through
//                                                                                         the inbox, two copies
// A receiver drains its ring at once, matched or not, so a lane cannot block another one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "prun/sdk/failure.h"
#include "wait.h"

namespace prun::shm {

using sdk::Failure;

struct Context;

struct Request {
  enum class Kind { p2p, coll, signal } kind;
};

struct P2pRequest;

struct Transfer {  // one op of a batch
  P2pRequest* request = nullptr;
  std::byte* ptr = nullptr;
  const std::byte* source = nullptr;  // set in a direct receive
  size_t bytes = 0, moved = 0;
  int peer = 0;  // local index
  uint16_t lane = 0;
  bool recv = false, finished = false;
  uint32_t id = 0;            // set in a send that waits for an answer
  uint64_t answer_to = 0;     // set in a receive: the sender's id
  Transfer* other = nullptr;  // set in a receive from this rank itself: its send
};

enum class RecordKind : uint8_t { pad, eager, direct, bounce, answer, go, comm };

struct Record {  // stored in a ring at a multiple of 64 bytes; the body of an eager record follows its first 16 bytes
  RecordKind kind;
  uint8_t refused;  // set in an answer: the sizes differ
  uint16_t lane;
  uint32_t length;  // bytes of the record in the ring
  uint64_t bytes;   // bytes of the message
  uint64_t id;
  uint64_t offset;  // direct: offset in the arena
  int32_t arena;
  uint32_t pad;
};
inline constexpr size_t kRecordHead = 16;

// Announces this rank's block of a group to another member.
struct CommNote {
  uint64_t key;                     // hash of ranks and lane
  uint64_t first_call, first_step;  // the block's counters at creation
  int32_t slot;
  int32_t members;
  uint32_t small, chunk, ring;  // values of the announcing rank
};

struct Unexpected {
  Record record;
  std::vector<std::byte> body;
  Transfer* from_self = nullptr;
};

struct Lane {
  std::deque<Transfer*> posted;
  std::deque<Unexpected> unexpected;
};

struct Outgoing {  // a record that waits for space in the peer's ring
  Record record;
  const std::byte* body = nullptr;  // set in an eager send: the user's buffer
  CommNote note{};
  Transfer* transfer = nullptr;  // finished once the record is in the ring
};

struct Link {  // state of one peer
  std::unordered_map<uint16_t, Lane> lanes;
  std::deque<Outgoing> out;
  std::deque<Transfer*> direct_in;  // direct receives that are being copied
  std::deque<Transfer*> bounce_in, bounce_out;
  std::deque<CommNote> notes;        // received notes that comm_test has not consumed yet
  uint64_t tail = 0, head_seen = 0;  // positions in the ring towards the peer
  uint64_t head = 0;                 // position in the ring from the peer
  uint64_t filled = 0, taken = 0;    // counts of bounce chunks: filled for the peer, taken from the peer
};

struct P2pRequest : Request {
  std::vector<Transfer> transfers;
  size_t left = 0;
  Failure failure;
  bool abandoned = false;
  Patience patience;
};

struct SignalRequest : Request {  // wait_signal
  int peer = -1;                  // local index
  uint64_t signal = 0, count = 0;
  Patience patience;
};

struct P2p {
  std::vector<Link> links;         // by local index
  std::vector<Transfer*> waiting;  // sends by id; null = free
  std::vector<uint32_t> free_ids;
  std::vector<std::unique_ptr<P2pRequest>> abandoned;  // ended with an error; queues may still refer to their transfers
};

Failure test_batch(Context& c, P2pRequest* request);
Failure test_signal(Context& c, SignalRequest* request);

// ring.cc and p2p.cc; all are called under c.mutex. `progress` moves bytes for about a millisecond and returns whether
// any moved.
void send_note(Context& c, int peer, const CommNote& note);
bool progress(Context& c);
void finish(Transfer* t);
// Fails a transfer because the sizes of a send and its receive differ; `others` is the peer's size.
void finish_with_mismatch(Context& c, Transfer* t, uint64_t others);
// Fails a receive and its message on both sides because their sizes differ.
void refuse(Context& c, Transfer* t, const Record& record, Transfer* from_self);
// Queues a record for the peer's ring; records are written in order, as soon as there is space.
void post(Context& c, int peer, const Outgoing& outgoing);
// Delivers a message from `peer` to its receive, or buffers it until one is posted.
void arrived(Context& c, int peer, const Record& record, const std::byte* body, Transfer* from_self);

}  // namespace prun::shm
