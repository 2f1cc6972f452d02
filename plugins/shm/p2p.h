// Point to point: batches, matching, and the three ways a message travels.
//
//   eager    up to 16 KiB, inside its record; the send is complete at once
//   direct   the send's buffer lies in an arena: the receiver reads it there and answers
//   bounce   neither: the receiver answers when it has a buffer, then chunks go through shared memory, cut to stay
//            in cache
// A receiver takes every record out of its ring at once, matched or not, so one lane never stands in another's way.
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
  const std::byte* source = nullptr;  // of a direct receive
  size_t bytes = 0, moved = 0;
  int peer = 0;  // local index
  uint16_t lane = 0;
  bool recv = false, finished = false;
  uint32_t id = 0;            // of a send that waits for an answer
  uint64_t answer_to = 0;     // of a receive: the sender's id
  Transfer* other = nullptr;  // of a receive from oneself: its send
};

enum class RecordKind : uint8_t { pad, eager, direct, bounce, answer, go, comm };

struct Record {  // in a ring, at multiples of 64 bytes; the body of an eager record follows its first 16 bytes
  RecordKind kind;
  uint8_t refused;  // of an answer: the sizes differ
  uint16_t lane;
  uint32_t length;  // of the record in the ring
  uint64_t bytes;   // of the message
  uint64_t id;
  uint64_t offset;  // direct: where in the arena
  int32_t arena;
  uint32_t pad;
};
inline constexpr size_t kRecordHead = 16;

// Tells a member of a group where this rank's block for it is.
struct CommNote {
  uint64_t key;                     // hash of ranks and lane
  uint64_t first_call, first_step;  // the block's counters at creation
  int32_t slot;
  int32_t members;
  uint32_t small, chunk, ring;  // what it would choose
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

struct Outgoing {  // waits for room in the peer's ring
  Record record;
  const std::byte* body = nullptr;  // of an eager send: the user's buffer
  CommNote note{};
  Transfer* transfer = nullptr;  // finished once the record is in the ring
};

struct Link {  // with one peer
  std::unordered_map<uint16_t, Lane> lanes;
  std::deque<Outgoing> out;
  std::deque<Transfer*> direct_in;  // being copied
  std::deque<Transfer*> bounce_in, bounce_out;
  std::deque<CommNote> notes;        // that came, until comm_test takes them
  uint64_t tail = 0, head_seen = 0;  // of the ring towards the peer
  uint64_t head = 0;                 // of the ring from the peer
  uint64_t filled = 0, taken = 0;    // bounce chunks: towards the peer, from the peer
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
  std::vector<Transfer*> waiting;  // sends by id; null: free
  std::vector<uint32_t> free_ids;
  std::vector<std::unique_ptr<P2pRequest>> abandoned;  // ended with an error; queues may still name their transfers
};

Failure test_batch(Context& c, P2pRequest* request);
Failure test_signal(Context& c, SignalRequest* request);

// ring.cc and p2p.cc, all under c.mutex. `progress` moves what can be moved within about a millisecond; true: something
// moved.
void send_note(Context& c, int peer, const CommNote& note);
bool progress(Context& c);
void finish(Transfer* t);
// The sizes of a send and its receive differ; `others` is the peer's.
void finish_with_mismatch(Context& c, Transfer* t, uint64_t others);
// Tells both sides of a receive and a message that their sizes differ.
void refuse(Context& c, Transfer* t, const Record& record, Transfer* from_self);
// Into the peer's ring, now or as soon as there is room; in order.
void post(Context& c, int peer, const Outgoing& outgoing);
// A message from `peer`: to its receive, or kept until there is one.
void arrived(Context& c, int peer, const Record& record, const std::byte* body, Transfer* from_self);

}  // namespace prun::shm
