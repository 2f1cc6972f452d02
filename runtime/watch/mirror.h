// Recorders of other nodes' ranks on node 0:
//
//     rank -> recorder -> MirrorSource ==news==> MirrorCopy -> recorder -> readers on node 0
//             (its node)                         (node 0)
//
// Clocks of two machines have different origins, so times are shifted by the smallest observed difference between
// sending and arrival. The error is the shortest latency, far below a step.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/recorder.h"
#include "watch/rank_watch.h"
#include "watch/view.h"

namespace prun {

// Runs on the rank's own node.
class MirrorSource {
 public:
  MirrorSource(RecorderHeader& recorder, int pid) : recorder_(recorder), pid_(pid) {}
  // Returns the changes since the last call, with at most the last `events` of each stream; frees the ring slots of the
  // steps.
  std::string take(char process, size_t events, std::string_view kernel = "");
  void freeze();  // fixes the reported stream states
  bool has_steps() const { return recorder_.steps_written.load() > steps_; }

 private:
  struct State {
    uint32_t op, step, run, running;
    uint64_t since_ns, written;
  };
  State state_of(int stream) const;

  RecorderHeader& recorder_;
  int pid_;
  uint64_t steps_ = 0;
  std::array<uint64_t, kMaxStreams> sent_{};
  bool frozen_ = false;
  std::array<State, kMaxStreams> states_{};
};

// Runs on node 0.
class MirrorCopy {
 public:
  explicit MirrorCopy(uint64_t capacity);
  // Returns false, and changes nothing, if the bytes are malformed.
  bool put(std::string_view bytes, uint64_t now_ns);
  RecorderHeader* recorder() { return reinterpret_cast<RecorderHeader*>(memory_.get()); }
  int pid() const { return pid_; }
  char process() const { return process_; }
  const std::string& kernel() const { return kernel_; }

 private:
  void set_offset(bool same_machine, int64_t difference, uint64_t now);
  uint64_t here(uint64_t ns) const;  // converts to this machine's clock; 0 remains 0
  void put_events(int stream, uint64_t written, const std::vector<OpEvent>& events);
  void put_steps();

  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;  // untouched pages cost no memory
  std::deque<StepRecord> waiting_;           // records that wait for a slot in the ring
  int64_t offset_ns_ = INT64_MAX, least_ns_ = INT64_MAX;
  uint64_t arrived_ns_ = 0;
  int pid_ = 0;
  char process_ = '?';
  std::string kernel_;
};

// Presents the ranks of other nodes like local ranks.
class Mirrors {
 public:
  // `mirror_all`: sends all events to node 0, for a trace.
  void placed(bool mirror_all) { mirror_all_ = mirror_all; }
  // Returns the ranks to watch. On node 0 it appends the ranks of other nodes, with recorders of `capacity` events, to
  // the result and to `job`.
  std::vector<WatchedRank> open(RunningJob& job, uint64_t capacity);
  // Returns the news of each local rank for node 0; call on other nodes. `last`: the job has ended.
  std::vector<std::pair<int, std::string>> news(RankWatch& watch, bool last);
  void put(RankWatch& watch, int rank, std::string_view bytes);  // on node 0
  // Fixes the news once the end is decided, before ranks are notified.
  void freeze(const RankWatch& watch);
  bool is_mirrored(int rank) const { return copies_.contains(rank); }

 private:
  std::string take(const RankWatch& watch, size_t source, size_t events);

  bool mirror_all_ = false;
  std::vector<int> ranks_;             // ranks of `sources_`
  std::vector<MirrorSource> sources_;  // on other nodes: local ranks
  std::map<int, MirrorCopy> copies_;   // on node 0: other nodes' ranks
  std::vector<std::pair<int, std::string>> last_news_;
  uint64_t next_sample_ns_ = 0;
};

}  // namespace prun
