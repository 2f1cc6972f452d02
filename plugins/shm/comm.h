// Communicators: a block of flags for each member, and the collective under way.
//
// A block is chosen by its owner alone; members tell each other by a note through the point-to-point rings. Its
// counters never fall, so a block can be used again without asking: a slow peer that still looks for an old value
// finds a higher one. What it might still read (lines, slots) is kept until it has completed its last call.
#pragma once
#include <vector>

#include "context.h"

namespace prun::shm {

struct Member {
  int rank = -1;  // global
  int local = -1;
  CommBlock* block = nullptr;  // in its segment
  uint64_t first_call = 0, first_step = 0;
  const std::byte* send = nullptr;  // of the call under way, as mapped here; null: not visible
  std::byte* recv = nullptr;
};

// arrive: all have posted the call. direct: work in the members' buffers, then leave: all have done theirs.
// staged: chunk by chunk through the blocks.
enum class Stage { idle, arrive, direct, leave, staged };

struct Comm;
struct CollRequest : Request {
  Comm* comm = nullptr;
};

struct Comm {
  std::vector<Member> members;
  std::vector<int> locals;  // of the other members
  int me = 0;
  uint64_t key = 0;
  int slot = -1;
  bool ready = false;
  size_t small = 0, chunk = 0, ring = 0;  // the least that any member wants: all must choose alike

  uint64_t calls = 0;   // completed
  uint64_t steps = 0;   // of all completed calls
  size_t ring_end = 0;  // staged: where the last chunk ends

  // The call under way.
  prun_coll_params params{};
  CollRequest request;
  Stage stage = Stage::idle;
  Patience patience;
  bool broken = false;      // ended with an error: its flags mean nothing any more
  int awaited = -1;         // the rank that the last wait in vain was for
  size_t waited = 0;        // members known to have arrived where they are waited for
  uint64_t at = 0;          // bytes done of the direct work
  uint64_t step = 0;        // barriers passed after the arrival
  bool published = false;   // staged: this step's own part is done
  size_t chunk_at[3] = {};  // staged: where chunk t lies in the rings, by t % 3
  bool stream = false;      // outputs go past the caches
  const char* path = "";    // of the last call, in words
  prun_coll_seen seen{};

  CommBlock& block() const { return *members[me].block; }
  size_t size() const { return members.size(); }
};

Failure test_collective(Context& c, Comm& comm);

}  // namespace prun::shm
