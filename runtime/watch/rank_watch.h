// Distinguishes stopped, slow and waiting ranks while the job runs.
//
// A rank that waits in a collective is never the culprit itself: who_waits.h follows the wait to its end. The watch
// checks processes twice a second. It restarts after a pause of the launcher itself, because all timers have jumped.
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

// A rank with its process, recorder and node.
struct WatchedRank {
  int rank = 0, node = 0, pid = 0;
  std::string host;
  RecorderHeader* recorder = nullptr;
  bool local = true;   // its process runs on this machine
  char process = '?';  // on another machine as reported by its launcher, like `kernel`
  std::string kernel;  // kernel_words of a rank without recent progress, or ""
};

class RankWatch {
 public:
  RankWatch(std::vector<WatchedRank> ranks, double limit_s);
  // Call about every 50 ms. `warn` receives a sentence for each new finding.
  void tick(const Job& job, const std::function<void(const std::string&)>& warn);
  // Returns the rank that has held up the job for longer than the limit.
  const std::optional<Hang>& hang() const { return hang_; }
  // Reads all recorders, with the last `events` of each stream. freeze() fixes the states of processes.
  Flight flight(size_t events) const;
  void freeze();
  // Returns the kernel's view of each rank for people, brief for other machines; "" = all made progress recently.
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
