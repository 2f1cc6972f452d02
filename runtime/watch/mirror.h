// What node 0 knows of ranks of other nodes: their launcher sends the news of each recorder, and node 0 keeps a copy
// of the recorder that everybody reads like those of its own ranks.
//
// Surprising fact: clocks of two machines have different beginnings, so times are moved by the smallest difference seen
// between sending and arrival. What is left is the shortest latency, well below a step.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/recorder.h"

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

}  // namespace prun
