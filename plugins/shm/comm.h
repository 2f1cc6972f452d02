// Communicators: a block of flags per member, and the collective in progress.
//
// The owner alone chooses a block and announces it to the other members by a note through the point-to-point rings.
// Counters of a block never decrease, so it can be reused without a handshake: a slow peer that waits for an old value
// finds a higher one. Lines and slots that it may still read are retained until it has completed its last call.
#pragma once
#include <vector>

#include "context.h"

namespace prun::shm {

struct Member {
  int rank = -1;  // global rank
  int local = -1;
  CommBlock* block = nullptr;  // the member's block, in its segment
  uint64_t first_call = 0, first_step = 0;
  const std::byte* send = nullptr;  // buffers of the call in progress, as mapped here; null = not mapped
  std::byte* recv = nullptr;
};

// arrive: waiting until all members have posted the call. direct: working in the members' buffers. leave: waiting until
// all have finished that. staged: chunk by chunk through the blocks.
enum class Stage { idle, arrive, direct, leave, staged };

struct Comm;
struct CollRequest : Request {
  Comm* comm = nullptr;
};

struct Comm {
  std::vector<Member> members;
  std::vector<int> locals;  // local indices of the other members
  int me = 0;
  uint64_t key = 0;
  int slot = -1;
  bool ready = false;
  size_t small = 0, chunk = 0, ring = 0;  // minima over all members, because all must choose the same path

  uint64_t calls = 0;   // completed calls
  uint64_t steps = 0;   // steps of all completed calls
  size_t ring_end = 0;  // staged: end of the last chunk

  // The call in progress.
  prun_coll_params params{};
  CollRequest request;
  Stage stage = Stage::idle;
  Patience patience;
  bool broken = false;      // an error has ended the communicator, so its flags are invalid
  int awaited = -1;         // the rank that the last wait timed out on; -1 = none
  size_t waited = 0;        // members known to have reached the awaited point
  uint64_t at = 0;          // bytes done by the direct path
  uint64_t step = 0;        // barriers passed after the arrival
  bool published = false;   // staged: this rank has done its part of the step
  size_t chunk_at[3] = {};  // staged: offset of chunk t in the rings, at index t % 3
  bool stream = false;      // outputs are written with non-temporal stores
  const char* path = "";    // path of the last call, for users
  prun_coll_seen seen{};

  CommBlock& block() const { return *members[me].block; }
  size_t size() const { return members.size(); }
};

Failure test_collective(Context& c, Comm& comm);

}  // namespace prun::shm
