// Ops of a body that run again and again, listed once: the middle of a schedule that does for microbatch after
// microbatch the same.
//
// The body lists the schedule with most of its middle left out. Behind one listed period, of `ops`, `times` more of it
// run, each of them `microbatches` further: its tensors are those of later microbatches, and its edges lead to ops as
// much later. What is listed behind the period is then of microbatches that are times x microbatches further.
// ir/recurs.h says what must hold of the periods beside the listed one.
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
  // Places of one buffer of each microbatch: microbatch m has place (start + m * step) % slots.
  struct Ring {
    int64_t offset = -1;  // of place 0, in the arena
    int64_t bytes = 0;    // from place to place
    int slots = 1, start = 0, step = 1;
    int pool = -1;  // the places are its slots
    // Whether others have to take all places for taken while one is: each microbatch may have any of them. Of two
    // that do not change over a repeat, the periods beside the listed one show both.
    bool is_one_to_others(int64_t left_out) const { return slots > 2 || (slots == 2 && left_out % 2 != 0); }
    int place(int64_t microbatch) const { return static_cast<int>((start + microbatch * step) % slots); }
  };
  // A buffer of one microbatch.
  struct Member {
    BufferId buffer;
    int ring = 0, microbatch = 0;
  };
  // A view that lies so many bytes further in its buffer with each microbatch.
  struct Slide {
    TensorId tensor;
    int64_t bytes = 0;
  };
  // An integer attribute that grows so much with each microbatch.
  struct Growth {
    StreamId stream;
    int index = 0;
    std::string attr;
    int64_t by = 0;
  };

  int64_t times = 0;  // 0: nothing repeats
  int microbatches = 0;
  Table<StreamId, Span> ops;
  std::vector<Ring> rings;
  std::vector<Member> members;
  std::vector<Slide> slides;
  std::vector<Growth> growths;

  bool any() const { return times > 0; }
  int64_t left_out() const { return times * microbatches; }  // microbatches
};

// The ops of a stream as they run: which listed op is the n-th, and in which run of the period.
class WrittenOut {
 public:
  explicit WrittenOut(const Body& body);
  struct Place {
    int index = 0;     // of the listed op
    int64_t copy = 0;  // periods by which it is further than listed
  };
  int64_t ops(StreamId stream) const;
  Place at(StreamId stream, int64_t index) const;
  // Where the op waited for runs, for one that is `copy` periods further than listed.
  int64_t target(StreamId stream, int index, int64_t copy) const;
  int64_t runs(StreamId stream, int index) const;  // of a listed op, in one step

 private:
  const Body& body_;
};

// The program, or all of a job's, with every op listed.
Program written_out(const Program& program);
Job written_out(const Job& job);

}  // namespace prun
