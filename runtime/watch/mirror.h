// What node 0 knows of ranks of other nodes: their launcher sends the news of each recorder, and node 0 keeps a copy
// of the recorder that everybody reads like those of its own ranks.
//
// Surprising fact: clocks of two machines have different beginnings, so times are moved by the smallest difference seen
// between sending and arrival. What is left is the shortest latency, well below a step.
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

// On the rank's own node.
class MirrorSource {
 public:
  MirrorSource(RecorderHeader& recorder, int pid) : recorder_(recorder), pid_(pid) {}
  // News since the last call, of each stream at most the last `events`; frees the steps' places in the ring.
  std::string take(char process, size_t events, std::string_view kernel = "");
  void freeze();  // from now on streams are told as they stand
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

// On node 0.
class MirrorCopy {
 public:
  explicit MirrorCopy(uint64_t capacity);
  // False: the bytes are no news of a recorder, and nothing has changed.
  bool put(std::string_view bytes, uint64_t now_ns);
  RecorderHeader* recorder() { return reinterpret_cast<RecorderHeader*>(memory_.get()); }
  int pid() const { return pid_; }
  char process() const { return process_; }
  const std::string& kernel() const { return kernel_; }

 private:
  void set_offset(bool same_clock, int64_t difference, uint64_t now);
  uint64_t here(uint64_t ns) const;  // on this machine's clock; 0 stays
  void put_events(int stream, uint64_t written, const std::vector<OpEvent>& events);
  void put_steps();

  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;  // pages that nobody touches cost nothing
  std::deque<StepRecord> waiting_;           // for a place in the ring
  int64_t offset_ns_ = INT64_MAX;
  uint64_t arrived_ns_ = 0;
  int pid_ = 0;
  char process_ = '?';
  std::string kernel_;
};

// Makes ranks of other nodes look like those of this one.
class Mirrors {
 public:
  // `mirror_all`: node 0 gets all events, for a trace.
  void placed(bool mirror_all) { mirror_all_ = mirror_all; }
  // Returns the local ranks to watch. On node 0 it adds the ranks of other nodes, with recorders of `capacity` events,
  // to them and to `job`.
  std::vector<WatchedRank> open(RunningJob& job, uint64_t capacity);
  // On other nodes: what node 0 gets of each local rank. `last`: the job has ended.
  std::vector<std::pair<int, std::string>> news(RankWatch& watch, bool last);
  void put(RankWatch& watch, int rank, std::string_view bytes);  // on node 0
  // The end is decided, and no rank knows yet: news stay as they are.
  void freeze(const RankWatch& watch);
  bool is_mirrored(int rank) const { return copies_.contains(rank); }

 private:
  std::string take(const RankWatch& watch, size_t source, size_t events);

  bool mirror_all_ = false;
  std::vector<int> ranks_;             // of `sources_`
  std::vector<MirrorSource> sources_;  // on other nodes: of local ranks
  std::map<int, MirrorCopy> copies_;   // on node 0: of other nodes' ranks
  std::vector<std::pair<int, std::string>> last_news_;
  uint64_t next_sample_ns_ = 0;
};

}  // namespace prun
