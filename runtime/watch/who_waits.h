// Finds the rank that holds up a job, from its program and the flight recorders:
//
//     waiting rank --> members of its group that have not entered the op --> ... --> a rank that waits for none
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/walk.h"
#include "watch/flight.h"

namespace prun {

enum class Doing { unknown, ended, finished, stopped, silent, joining, working, waiting };

struct Activity {
  int rank = -1;
  Doing doing = Doing::unknown;
  const Op* op = nullptr;    // its current op; null: none
  OpRef at;                  // its position in the body
  uint64_t since_ns = 0;     // since it entered the op, or was stopped
  bool replayed = false;     // the device replays a graph: it may be at any op from this one on
  std::vector<int> missing;  // while waiting: the members that have not entered the op
};

// The rank that holds up the job, with the evidence.
struct Holdup {
  int rank = -1;         // -1: unknown: all ranks are in the op, and nothing moves
  std::string sentence;  // "rank 5 never entered all_gather 812 of axis dp, plans/zero3.lua:14; it is writing ..."
  std::string op;        // its current op, or ""
  std::vector<std::string> chain;  // "rank 0 waits for rank 5 in ..", one a line, from the longest wait on
};

class WhoWaits {
 public:
  WhoWaits(const Job& job, const Flight& flight) : job_(job), flight_(flight) {}  // both outlive this
  Activity of(int rank) const;
  // Starts at the rank with the longest wait in a communication op; nullopt: no rank waits for another. `past`: the run
  // is over.
  std::optional<Holdup> holdup(bool past) const;
  std::string words(const Activity& activity) const;  // "reading data (next_batch at plans/a.lua:3) for 4 s"
  // Returns "all_gather 812 of axis dp (block2), plans/zero3.lua:14"; the number counts the ops of this kind on the
  // axis so far.
  std::string op_text(int rank, OpRef at) const;

 private:
  const Body& body_of(const FlightRank& rank) const;
  std::optional<OpRef> stream_at(const FlightRank& rank, StreamId stream, unsigned seen) const;
  std::vector<int> missing_of(const FlightRank& rank, OpRef at) const;
  bool has_come(const FlightRank& member, const FlightRank& waits, OpRef at) const;
  int next(const Activity& waiter) const;
  int slow_writer(const Activity& awaits) const;

  const Job& job_;
  const Flight& flight_;
};

// A process whose heartbeat, which is independent of its work, is older than this is stopped or frozen.
inline constexpr double kSilentSeconds = 10;

}  // namespace prun
