// Ops of a body that are listed once and run several times: the steady state of a schedule.
//
//   listed     head  [period]                                tail
//   executed   head  [period]  [+1]  [+2]  ...  [+times]     tail + times
//
// `+k` shifts by k x `microbatches`: tensors become those of later microbatches, and edges lead to ops as much later.
// `ops` is the listed period. ir/recurs.h states what must hold for the periods next to it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/ids.h"

namespace prun {

struct Body;
struct Job;
struct Program;

struct Repeat {
  struct Span {
    int first = 0, count = 0;
  };
  // Slots for one buffer per microbatch: microbatch m has slot (start + m * step) % slots.
  struct Ring {
    int64_t offset = -1;  // offset of slot 0 in the arena
    int64_t bytes = 0;    // stride of the slots
    int slots = 1, start = 0, step = 1;
    int pool = -1;  // pool whose slots these are; -1 = none
    // Returns whether other buffers must treat all slots as taken while one of them is, because each microbatch may
    // have any slot. Returns false for two slots whose assignment survives the repeat, because the periods next to the
    // listed one show both slots.
    bool is_one_to_others(int64_t left_out) const { return slots > 2 || (slots == 2 && left_out % 2 != 0); }
    int place(int64_t microbatch) const { return static_cast<int>((start + microbatch * step) % slots); }
  };
  // A buffer of one microbatch.
  struct Member {
    BufferId buffer;
    int ring = 0, microbatch = 0;
  };
  // A view that moves by `bytes` in its buffer with each microbatch.
  struct Slide {
    TensorId tensor;
    int64_t bytes = 0;
  };
  // An integer attribute that grows by `by` with each microbatch.
  struct Growth {
    StreamId stream;
    int index = 0;
    std::string attr;
    int64_t by = 0;
  };

  int64_t times = 0;  // 0 = nothing repeats
  int microbatches = 0;
  Table<StreamId, Span> ops;
  std::vector<Ring> rings;
  std::vector<Member> members;
  std::vector<Slide> slides;
  std::vector<Growth> growths;

  bool any() const { return times > 0; }
  int64_t left_out() const { return times * microbatches; }  // microbatches
};

// Maps the executed ops of a stream to listed ones and back.
class WrittenOut {
 public:
  explicit WrittenOut(const Body& body);
  struct Place {
    int index = 0;     // index of the listed op
    int64_t copy = 0;  // periods by which it is shifted
  };
  int64_t ops(StreamId stream) const;
  Place at(StreamId stream, int64_t index) const;
  // Returns the executed index of the op at listed `index`, as the target of an edge of an op shifted by `copy`
  // periods.
  int64_t target(StreamId stream, int index, int64_t copy) const;
  int64_t runs(StreamId stream, int index) const;  // runs of a listed op per step

 private:
  const Body& body_;
};

// Return the program, or all programs of a job, with every op listed.
Program written_out(const Program& program);
Job written_out(const Job& job);

}  // namespace prun
