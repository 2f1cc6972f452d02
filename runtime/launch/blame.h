// Selects the root cause among several reported failures, and finds the rank that holds up a hung job.
//
// The first report is rarely the root cause: a victim that only exits is faster than the culprit, which has to examine
// its error. So every failure except an observed error or a death by signal waits for a better explanation:
//
//     report A --> due = now + settles_in(A) --+--> heavier report B --> due = now + settles_in(B)
//                                              `--> due passes --------> judge(): the heaviest failure or its cause
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/failure.h"

namespace prun {

using Clock = std::chrono::steady_clock;

// Returns the time that a failure of this weight waits for a heavier one.
Clock::duration settles_in(Weight weight);

// State of one rank at the time when some rank had made no progress for too long.
struct RankWaits {
  int rank = 0;
  std::vector<int> awaited;  // ranks that its threads wait for; empty: it computes, or is stopped
  int state = 'R';           // process state as in ps: 'T' stopped, 'X' gone
  RankName name;
  std::string op;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(rank, awaited, state, name, op);
  }
};

// Returns the rank that holds up `waiting`, found by a breadth-first search along the waits: a stopped rank, otherwise
// the nearest rank that waits for no other. nullopt: the ranks wait for each other. `path`: the ranks from `waiting` to
// the result, both included; empty if no known wait leads to it.
std::optional<int> who_holds_up(int waiting, const std::vector<RankWaits>& ranks, std::vector<int>* path);

class Blame {
 public:
  void add(Failure failure, Clock::time_point now);
  void add(std::vector<RankWaits> ranks);
  void waits_are_known(Clock::time_point now);  // all launchers have answered ask_waits
  bool empty() const { return failures_.empty(); }
  Clock::time_point due() const { return due_; }  // when to call `judge`
  // Returns the root cause among the added failures. `returned`: whether a rank has returned 0.
  Failure judge(const std::function<bool(int rank)>& returned, const JobCommand& command) const;

 private:
  const Failure* of_rank(int rank) const;
  const Failure* weightiest() const;
  const Failure* mutual_loss() const;

  std::vector<Failure> failures_;  // the heaviest of each rank, in the order of arrival
  std::vector<RankWaits> waits_;
  Clock::time_point due_ = Clock::time_point::max();
};

}  // namespace prun
