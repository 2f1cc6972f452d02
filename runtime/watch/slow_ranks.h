// Detects a slow rank: the others of its groups wait for it in window after window, although it makes progress.
//
// Arrival times reveal it, not wall times, because in a synchronous job all steps take equally long on all ranks. The
// time that a rank itself waited before its arrival does not count.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "ir/program.h"
#include "watch/rank_watch.h"

namespace prun {

class SlowRanks {
 public:
  void begin(const Job& job);
  // Call about every 50 ms; `warn` receives a sentence about a rank that has been slow for three windows.
  void tick(const std::vector<WatchedRank>& ranks, const std::function<void(const std::string&)>& warn);
  const std::vector<int>& ranks() const { return named_; }  // currently slow

 private:
  struct Meeting {                      // rendezvous of an op's group
    const std::string* axis = nullptr;  // null: not a group op
    int lane = 0, number = 0;           // lane over all axes; number among the meetings of its lane
  };
  struct Group {
    int leader = 0;   // the first member
    size_t size = 0;  // 0: not looked up yet
  };
  struct Arrival {
    std::tuple<int, int, int, uint32_t> meeting;  // lane, first member, number, step
    size_t rank = 0;                              // index in the list of ranks
    size_t group = 0;                             // number of members
    uint64_t begin_ns = 0, end_ns = 0;
  };
  void sample(const std::vector<WatchedRank>& ranks);
  void close_window(const std::vector<WatchedRank>& ranks, const std::function<void(const std::string&)>& warn);

  const Job* job_ = nullptr;
  std::vector<std::vector<std::vector<Meeting>>> meetings_of_;  // by class, stream and op
  size_t lanes_ = 0;
  std::vector<std::vector<Group>> groups_;  // by index in the list of ranks, and lane
  std::vector<std::array<uint64_t, kMaxStreams>> read_;
  std::vector<double> late_s_;  // by rank, in this window
  double span_s_ = 0;
  int64_t meetings_ = 0;
  uint64_t next_look_ns_ = 0, window_ends_ns_ = 0;
  std::vector<int> in_a_row_;  // consecutive slow windows, by rank
  std::vector<int> named_;
};

}  // namespace prun
