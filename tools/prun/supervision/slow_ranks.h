// A rank that is slow: the others of its groups wait for it, window after window, though it goes on.
//
// Arrival times tell it, not wall times: in a synchronous job all steps take equally long on all ranks. What a rank
// itself waited for others before it came is not held against it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ir/program.h"
#include "supervision/rank_watch.h"

namespace prun {

class SlowRanks {
 public:
  void begin(const Job& job);
  // About every 50 ms; `warn` gets a sentence about a rank that has been slow for three windows.
  void tick(const std::vector<WatchedRank>& ranks, const std::function<void(const std::string&)>& warn);
  const std::vector<int>& ranks() const { return named_; }  // now

 private:
  struct Arrival {
    size_t rank = 0;  // index in the list of ranks
    uint64_t begin_ns = 0, end_ns = 0;
  };
  struct Lane {                // of one stream of a class: what its collectives meet as
    std::vector<int> meeting;  // by op; -1: it meets nobody
    std::vector<const Op*> ops;
  };
  void sample(const std::vector<WatchedRank>& ranks);
  void close_window(const std::vector<WatchedRank>& ranks, const std::function<void(const std::string&)>& warn);

  const Job* job_ = nullptr;
  std::vector<std::vector<Lane>> lanes_;  // by class and stream
  std::vector<std::array<uint64_t, kMaxStreams>> read_;
  std::vector<double> late_s_;  // by rank, in this window
  double span_s_ = 0;
  int64_t meetings_ = 0;
  uint64_t next_look_ns_ = 0, window_ends_ns_ = 0;
  std::vector<int> in_a_row_;  // windows, by rank
  std::vector<int> named_;
};

}  // namespace prun
