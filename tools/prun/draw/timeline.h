// The content of a drawing: boxes on lanes, arrows between them, memory and the critical path, from any source (a
// trace, a flight recorder, a plan's ideal schedule). Writers of pages, pictures and text read nothing else.
//
// Times are nanoseconds from the first event. Boxes are ordered by lane and begin, and do not overlap on a lane.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace prun::draw {

enum class BoxKind : uint8_t {
  forward,
  backward,         // gradients of activations; all gradients if the schedule does not split backward
  weight_gradient,  // set only if the schedule splits backward
  recompute,
  gather,      // all-gathers of parameters
  gradient,    // reductions of gradients
  activation,  // collectives of activations
  message,     // point-to-point messages
  optimizer,
  other
};
inline constexpr int kBoxKinds = 10;
struct KindText {
  std::string_view id, name;  // "all_gather" for files, "all-gather" for people
};
const std::array<KindText, kBoxKinds>& kind_texts();

// Interned texts, because a timeline has far more boxes than names.
class Texts {
 public:
  int add(const std::string& text);
  const std::string& operator[](int id) const { return list_[static_cast<size_t>(id)]; }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
  std::map<std::string, int> ids_;
};

struct Box {
  int lane = 0;
  // The op waits for edges from `ready` on, for other ranks from `begin` on, and works from `arrived` on.
  int64_t ready = 0, begin = 0, arrived = 0, end = 0;
  BoxKind kind = BoxKind::other;
  // Indexes of texts. group: the mesh axis of communication, or "".
  int name = 0, unit = 0, site = 0, phase = 0, group = 0;
  int microbatch = -1, step = 0, op = 0;
  int64_t bytes = 0;
};

struct Lane {
  int rank = 0, stream = 0;
  int rank_class = -1;  // -1: unknown
  std::string name;     // name of the stream
  std::string who;      // "rank 0", or for a class "ranks 0-3"
};

struct Arrow {
  int from = 0, to = 0;  // indexes of boxes
  bool between_ranks = false;
};

// Boxes of one lane that appear as one: a unit's forward, a microbatch's backward.
struct Group {
  int first = 0, count = 0;  // indexes of boxes
  BoxKind kind = BoxKind::other;
  std::string label;
  int chunk = 0;  // in a pipeline with several stages per rank
};

// Bytes of one rank by role: after `times[i]` each role has `bytes[role][i]`.
struct MemoryStrip {
  int rank = 0;
  std::vector<std::string> roles;
  std::vector<int64_t> times;
  std::vector<std::vector<int64_t>> bytes;
  int64_t peak = 0;
};

struct Timeline {
  std::string name;        // "measured", "ideal"
  std::string source;      // the file or plan
  std::string mesh;        // "dp=2"; "": unknown
  int64_t whole_from = 0;  // before this time some lanes lack boxes; figures cover the time after it
  double unit_ns = 0;      // > 0: times are unit costs, with this many ns per unit
  bool splits_backward = false;
  Texts texts;
  std::vector<Lane> lanes;
  std::vector<Box> boxes;
  std::vector<Arrow> arrows;
  std::vector<Group> groups;
  std::vector<int> critical;  // indexes of boxes from first to last
  std::vector<MemoryStrip> memory;

  int64_t end() const;  // end of the last box
  int ranks() const;    // number of ranks that have lanes
};

// Derives the order of boxes, weight gradients, groups and the critical path from lanes, boxes and arrows. Boxes may be
// in any order before; arrows are renumbered with them.
void finish(Timeline& timeline);

// Facts that determine an op's kind. `role` is that of the memory that the op writes; "" = unknown.
struct OpFacts {
  std::string_view name, phase, role;
  bool communicates = false;
};
BoxKind kind_of(const OpFacts& op);

// Marks weight gradients if the schedule separates them from gradients of activations (zero bubble); otherwise both are
// one backward.
void tell_weight_gradients(Timeline& timeline);

// Returns runs of a lane's boxes with equal kind, unit and microbatch; for a pipeline's compute, kind and microbatch.
std::vector<Group> groups_of(const Timeline& timeline);

// Returns the critical path. It starts at the box that ends last, and each time continues with the predecessor that
// finished last: the previous op on its stream, the producer of an edge, or the last member to arrive at a collective.
std::vector<int> critical_path(const Timeline& timeline);

// Returns the path's time after `whole_from` in nanoseconds by kind; the last entry is time in which none of its boxes
// was at work.
std::vector<int64_t> critical_shares(const Timeline& timeline);

// The figures above a drawing: step time, compute utilization, exposed communication.
struct Figures {
  int steps = 0;
  int64_t covered_ns = 0;         // the time that the figures cover
  int64_t step_ns = 0;            // mean; for unit costs, unit_ns per unit; 0: steps are not whole
  double busy = 0;                // fraction of the compute streams' time, mean over ranks
  double communicating = 0;       // fraction of the time in which a rank communicates
  double exposed = 0;             // fraction in which it communicates without computing
  std::vector<int64_t> critical;  // see critical_shares()
  int64_t peak_bytes = 0;         // maximum over ranks; 0: unknown
};

Figures figures_of(const Timeline& timeline);

// Returns "12.3 ms", or with unit costs "3.5 F": forwards of a microbatch.
std::string time_text(const Timeline& timeline, int64_t ns);
// Returns "12.3 ms a step"; if steps are not whole, "the last 12.3 ms".
std::string covered_text(const Timeline& timeline, const Figures& figures);
// Returns the three largest shares, as "71 % forward, 12 % all-gather, 17 % waiting".
std::string critical_text(const Figures& figures);

}  // namespace prun::draw
