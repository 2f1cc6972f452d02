// Which of several failures ended the job, and which rank holds up a job in which nothing moves.
//
// Surprising fact: the first report is seldom the cause. A victim that only leaves is faster than the culprit, which
// has to look at what went wrong; so every failure but a death waits a moment for a better explanation.
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

// How long a failure of this weight waits for one that explains more.
Clock::duration settles_in(Weight weight);

// What one rank was at when some rank had had no progress for too long.
struct RankWaits {
  int rank = 0;
  std::vector<int> awaited;  // ranks that its threads wait for; none: it computes, or is stopped
  int state = 'R';           // of the process, as in ps: 'T' stopped, 'X' gone
  RankName name;
  std::string op;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(rank, awaited, state, name, op);
  }
};

// The rank that holds up `waiting`, following who waits for whom: one that is stopped, else the nearest that waits for
// nobody. None: the ranks wait for each other. `path`: the ranks on the way there, both ends among them.
std::optional<int> who_holds_up(int waiting, const std::vector<RankWaits>& ranks, std::vector<int>* path);

class Blame {
 public:
  void add(Failure failure, Clock::time_point now);
  void add(std::vector<RankWaits> ranks);
  void waits_are_known(Clock::time_point now);  // all launchers have answered
  bool empty() const { return failures_.empty(); }
  Clock::time_point due() const { return due_; }  // when `judge` should be asked
  // The cause among what was added. `returned` tells whether a rank has returned 0.
  Failure judge(const std::function<bool(int rank)>& returned, std::string_view command) const;

 private:
  const Failure* of_rank(int rank) const;
  const Failure* weightiest() const;
  const Failure* mutual_loss() const;

  std::vector<Failure> failures_;  // the weightiest of each rank, in the order of arrival
  std::vector<RankWaits> waits_;
  Clock::time_point due_ = Clock::time_point::max();
};

}  // namespace prun
