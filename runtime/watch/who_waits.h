// Who waits for whom: a job's program laid beside what its flight recorders show.
//
// A rank that stands in a collective says nothing about the culprit; the members of the group that have not come to it
// do, and what they stand in, until the walk ends at a rank that waits for nobody.
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
  const Op* op = nullptr;    // that it is in; null: none
  OpRef at;                  // where it stands in the body
  uint64_t since_ns = 0;     // in this op, or stopped
  bool replayed = false;     // the op is of a graph that the device replays: any op from it on may be meant
  std::vector<int> missing;  // waiting: the members that have not come to the op
};

// Who holds the job up, and how that is known.
struct Holdup {
  int rank = -1;         // -1: nobody that is known: all are in the op, and nothing moves
  std::string sentence;  // "rank 5 never entered all_gather 812 of axis dp, plans/zero3.lua:14; it is writing ..."
  std::string op;        // that it is in, "" where there is none
  std::vector<std::string> chain;  // "rank 0 waits for rank 5 in ..", one a line, from who waits longest
};

class WhoWaits {
 public:
  WhoWaits(const Job& job, const Flight& flight) : job_(job), flight_(flight) {}  // both outlive this
  Activity of(int rank) const;
  // From the rank that waits longest in a communication op; nothing: no rank waits for another. `past`: of a run that
  // is over.
  std::optional<Holdup> holdup(bool past) const;
  std::string words(const Activity& activity) const;  // "reading data (next_batch at plans/a.lua:3) for 4 s"
  // "all_gather 812 of axis dp (block2), plans/zero3.lua:14"; the op's number counts all of its kind on the axis so
  // far.
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

// Nothing has been heard of a process for this long: stopped or frozen, since its heartbeat needs no work to be done.
inline constexpr double kSilentSeconds = 10;

}  // namespace prun
