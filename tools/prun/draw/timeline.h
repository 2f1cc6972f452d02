// What `prun draw` draws: boxes on lanes, arrows between them, memory and the critical path, wherever they came from (a
// trace, a flight recorder, a plan's ideal schedule). Writers of pages, pictures and text read nothing else.
//
// Times are nanoseconds from the first event. Boxes are ordered by lane and begin, and do not overlap on their lane.
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
  backward,         // gradients of activations, or of everything where a schedule does not split backward
  weight_gradient,  // where it does
  recompute,
  gather,      // of parameters
  gradient,    // reductions of gradients
  activation,  // collectives of activations
  message,     // of a pair of ranks
  optimizer,
  other
};
inline constexpr int kBoxKinds = 10;
struct KindText {
  std::string_view id, name;  // "all_gather" for files, "all-gather" for people
};
const std::array<KindText, kBoxKinds>& kind_texts();

// Texts by number: a timeline has far more boxes than names.
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
  // Waiting for edges from `ready`, for other ranks from `begin`, at work from `arrived`.
  int64_t ready = 0, begin = 0, arrived = 0, end = 0;
  BoxKind kind = BoxKind::other;
  int name = 0, unit = 0, site = 0, phase = 0, group = 0;  // texts; group: the mesh axis of communication, or ""
  int microbatch = -1, step = 0, op = 0;
  int64_t bytes = 0;
};

struct Lane {
  int rank = 0, stream = 0;
  int rank_class = -1;  // -1: not known
  std::string name;     // of the stream
  std::string who;      // "rank 0", or of a class "ranks 0-3"
};

struct Arrow {
  int from = 0, to = 0;  // boxes
  bool between_ranks = false;
};

// Boxes of one lane that people see as one: a unit's forward, a microbatch's backward.
struct Group {
  int first = 0, count = 0;  // boxes
  BoxKind kind = BoxKind::other;
  std::string label;
  int chunk = 0;  // of a pipeline with several stages a rank
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
  std::string name;    // "measured", "ideal"
  std::string source;  // the file or plan
  std::string mesh;    // "dp=2", "" where it is not known
  double unit_ns = 0;  // > 0: times have no seconds; this many are the unit of cost
  bool splits_backward = false;
  Texts texts;
  std::vector<Lane> lanes;
  std::vector<Box> boxes;
  std::vector<Arrow> arrows;
  std::vector<Group> groups;
  std::vector<int> critical;  // boxes, the first first
  std::vector<MemoryStrip> memory;

  int64_t end() const;  // of the last box
  int ranks() const;    // how many have lanes
};

// What is derived once lanes, boxes and arrows are there: order of boxes, weight gradients, groups, the critical path.
// Boxes may be in any order before; arrows are numbered anew with them.
void finish(Timeline& timeline);

// What is known of an op when its kind is asked for; `role`: of the memory that it writes, "" where it is not known.
struct OpFacts {
  std::string_view name, phase, role;
  bool communicates = false;
};
BoxKind kind_of(const OpFacts& op);

// Marks gradients of weights where a schedule puts them apart from those of activations (zero bubble); elsewhere both
// are one backward.
void tell_weight_gradients(Timeline& timeline);

// Runs of a lane's boxes of one kind, unit and microbatch, or in a pipeline's compute of one kind and microbatch.
std::vector<Group> groups_of(const Timeline& timeline);

// The critical path: from the box that ends last back to the first, each time to the box that the one before waited for
// longest: the op before on its stream, the op at the other end of an edge, the last member to come to a collective.
std::vector<int> critical_path(const Timeline& timeline);

// How the path's time divides, in nanoseconds by kind; the last entry is time in which none of its boxes was at work.
std::vector<int64_t> critical_shares(const Timeline& timeline);

// The figures that stand above a drawing: how long a step takes, how busy compute is, what communication it waits for.
struct Figures {
  int steps = 0;
  int64_t step_ns = 0;            // mean; of a schedule in units of cost as unit_ns says
  double busy = 0;                // of the compute streams' time, mean over ranks
  double communicating = 0;       // part of the time in which a rank communicates
  double exposed = 0;             // and computes nothing meanwhile
  std::vector<int64_t> critical;  // as critical_shares()
  int64_t peak_bytes = 0;         // of the rank with the most; 0: not known
};

Figures figures_of(const Timeline& timeline);

// "12.3 ms", or of a schedule without seconds "3.5 F": forwards of a microbatch.
std::string time_text(const Timeline& timeline, int64_t ns);
// "71 % forward, 12 % all-gather, 17 % waiting": the largest three.
std::string critical_text(const Figures& figures);

}  // namespace prun::draw
