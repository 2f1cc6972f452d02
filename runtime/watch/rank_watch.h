// Tells a rank that is stopped from one that is slow and one that waits for another, while the job runs.
//
// A rank that waits in a collective is never the culprit by itself: who_waits.h follows the wait to its end. The watch
// looks at processes twice a second, and begins anew when the launcher itself has stood still, since then all clocks
// have jumped.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "watch/endless_op.h"
#include "watch/flight.h"
#include "watch/who_waits.h"

namespace prun {

// A rank whose process, recorder and place the launcher knows.
struct WatchedRank {
  int rank = 0, node = 0, pid = 0;
  std::string host;
  RecorderHeader* recorder = nullptr;
  bool local = true;   // its process is one of this machine
  char process = '?';  // of another machine: as its launcher said, and so the next
  std::string kernel;  // kernel_words of one that has not moved for a while, else ""
};

class RankWatch {
 public:
  RankWatch(std::vector<WatchedRank> ranks, double limit_s);
  // About every 50 ms. `warn` gets a sentence for each thing that is new.
  void tick(const Job& job, const std::function<void(const std::string&)>& warn);
  // The rank that holds the job up for longer than the limit.
  const std::optional<Hang>& hang() const { return hang_; }
  // With the last `events` of each stream. After freeze() processes are as they were then.
  Flight flight(size_t events) const;
  void freeze();
  // For people: what the kernel knows of each rank, of those of other machines in brief. "": all have moved lately.
  const std::string& stacks() const { return stacks_; }
  std::vector<WatchedRank>& ranks() { return ranks_; }
  const std::vector<WatchedRank>& ranks() const { return ranks_; }

 private:
  struct Seen {
    uint64_t stopped_ns = 0;
    bool told = false;
  };
  void look_at_processes(uint64_t now);
  bool stands_still(const WatchedRank& rank, uint64_t now) const;
  void warn_of_stopped(const Job& job, const std::function<void(const std::string&)>& warn);
  void look_for_endless_op(const Job& job);
  void look_for_hang(const Job& job, const std::function<void(const std::string&)>& warn);

  std::vector<WatchedRank> ranks_;
  std::vector<Seen> seen_;
  double limit_s_;
  uint64_t looked_ns_ = 0, ticked_ns_ = 0, resumed_ns_ = 0;
  bool warned_ = false, frozen_ = false;
  std::optional<Hang> hang_;
  std::string stacks_;
};

}  // namespace prun
