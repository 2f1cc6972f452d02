#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "draw/program_view.h"
#include "draw/timeline.h"
#include "draw/timeline_sources.h"
#include "ir/ops.h"

namespace prun::draw {
namespace {

// Identifies a rendezvous: step, axis, lane, members, and number of the op among those of these members.
using MeetingKey = std::tuple<uint32_t, std::string, int, std::vector<int>, int>;

class Builder {
 public:
  explicit Builder(const Job& job) : job_(job) {}

  Timeline build(const std::vector<StreamTimes>& times) {
    for (const StreamTimes& one : times) drawn_.insert(one.rank);
    timeline_.mesh = job_.classes.front().mesh.text();
    for (const StreamTimes& one : times)
      for (const OpEvent& event : one.events) origin_ = std::min(origin_, event.ready_ns);
    for (const StreamTimes& one : times) add_lane(one);
    for (const StreamTimes& one : times)
      if (one.cut && !one.events.empty())
        timeline_.whole_from =
            std::max(timeline_.whole_from, static_cast<int64_t>(one.events.front().ready_ns - origin_));
    for (const auto& [key, members] : meetings_) meet(members);
    for (const auto& [box, waiting] : waits_) add_edges(box, waiting);
    finish(timeline_);
    return std::move(timeline_);
  }

 private:
  struct Waiting {
    int rank;
    uint32_t step;
    const Op* op;
  };

  void add_lane(const StreamTimes& times) {
    const Program& program = job_.program(times.rank);
    const Stream& stream = program.step().streams[times.stream];
    const int lane = static_cast<int>(timeline_.lanes.size());
    const int which = job_.class_of_rank[static_cast<size_t>(times.rank)];
    timeline_.lanes.push_back({times.rank, times.stream, which, stream.name, who(times.rank)});
    const std::vector<int> numbers = numbers_of(program, stream, times.rank);
    for (const OpEvent& event : times.events) {
      const Op& op = stream.ops[event.op];
      const int box = static_cast<int>(timeline_.boxes.size());
      timeline_.boxes.push_back(box_of(program, op, event, lane));
      places_[{times.rank, times.stream, event.step, event.op}] = box;
      if (!op.waits.empty()) waits_.emplace_back(box, Waiting{times.rank, event.step, &op});
      if (!op.communicates() || op.offers()) continue;
      MeetingKey key(event.step, op.axis, op.lane, members_of(program.mesh, op, times.rank), numbers[event.op]);
      meetings_[std::move(key)].push_back(box);
    }
  }

  // Returns the ranks that a drawn rank represents, including the undrawn ones of its class: "ranks 0-3", "ranks 0, 2,
  // .., 6".
  std::string who(int rank) const {
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(job_.class_of_rank.size()); ++r)
      if (job_.class_of_rank[static_cast<size_t>(r)] == job_.class_of_rank[static_cast<size_t>(rank)] &&
          (r == rank || !drawn_.contains(r)))
        ranks.push_back(r);
    const int count = static_cast<int>(ranks.size());
    if (count == 1 || ranks.front() != rank) return fmt::format("rank {}", rank);
    if (ranks.back() - rank == count - 1) return fmt::format("ranks {}-{}", rank, ranks.back());
    return count == 2 ? fmt::format("ranks {}, {}", rank, ranks[1])
                      : fmt::format("ranks {}, {}, .., {}", rank, ranks[1], ranks.back());
  }

  // Numbers each communication op among the ops with the same members and lane. Offers are numbered separately.
  static std::vector<int> numbers_of(const Program& program, const Stream& stream, int rank) {
    std::map<std::tuple<std::string, int, std::vector<int>, bool>, int> next;
    std::vector<int> numbers;
    numbers.reserve(stream.ops.size());
    for (const Op& op : stream.ops)
      numbers.push_back(op.communicates() ? next[{op.axis, op.lane, members_of(program.mesh, op, rank), op.offers()}]++
                                          : 0);
    return numbers;
  }

  Box box_of(const Program& program, const Op& op, const OpEvent& event, int lane) {
    Box box;
    box.lane = lane;
    box.ready = static_cast<int64_t>(event.ready_ns - origin_);
    box.begin = box.arrived = static_cast<int64_t>(std::max(event.begin_ns, event.ready_ns) - origin_);
    box.end = std::max(static_cast<int64_t>(event.end_ns - origin_), box.begin + 1);
    box.kind = kind_of({op.def->name, phase_name(op.phase), role_of_result(program, op), op.communicates()});
    if (op.communicates() && program.mesh.size(op.axis) < 2) box.kind = BoxKind::other;  // a group of one rank
    box.name = timeline_.texts.add(op_name(op));
    box.unit = timeline_.texts.add(op.unit);
    box.site = timeline_.texts.add(op.site.text());
    box.phase = timeline_.texts.add(std::string(phase_name(op.phase)));
    box.group = timeline_.texts.add(op.axis);
    box.microbatch = op.microbatch;
    box.step = static_cast<int>(event.step);
    box.op = static_cast<int>(event.op);
    for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
      for (const TensorId id : *ids) box.bytes += program.tensors[id].bytes();
    return box;
  }

  Box& box(int i) { return timeline_.boxes[static_cast<size_t>(i)]; }

  bool sends(int i) {
    const std::string& name = timeline_.texts[box(i).name];
    return name.starts_with(ops::send.name) || name.starts_with(ops::put.name);
  }
  int sender_of(const std::vector<int>& pair) { return sends(pair[0]) ? pair[0] : pair[1]; }
  int receiver_of(const std::vector<int>& pair) { return sends(pair[0]) ? pair[1] : pair[0]; }

  void meet(const std::vector<int>& members) {
    const int last =
        *std::max_element(members.begin(), members.end(), [&](int a, int b) { return box(a).begin < box(b).begin; });
    const bool is_message = members.size() == 2 && box(last).kind == BoxKind::message;
    if (is_message) timeline_.arrows.push_back({sender_of(members), receiver_of(members), true});
    for (const int member : members) {
      if (member == last || box(member).end <= box(last).begin) continue;
      box(member).arrived = std::max(box(member).arrived, box(last).begin);
      if (!is_message) timeline_.arrows.push_back({last, member, true});
    }
  }

  void add_edges(int to, const Waiting& waiting) {
    for (const Edge& edge : waiting.op->waits) {
      if (waiting.step < static_cast<uint32_t>(edge.back)) continue;
      const auto from = places_.find({waiting.rank, edge.stream, waiting.step - static_cast<uint32_t>(edge.back),
                                      static_cast<uint32_t>(edge.index)});
      if (from != places_.end() && box(from->second).lane != box(to).lane)
        timeline_.arrows.push_back({from->second, to, false});
    }
  }

  const Job& job_;
  Timeline timeline_;
  std::set<int> drawn_;  // ranks that have a row
  uint64_t origin_ = UINT64_MAX;
  std::map<MeetingKey, std::vector<int>> meetings_;
  std::map<std::tuple<int, StreamId, uint32_t, uint32_t>, int> places_;  // index of a box by rank, stream, step, op
  std::vector<std::pair<int, Waiting>> waits_;
};

}  // namespace

Timeline timeline_of(const Job& job, const std::vector<StreamTimes>& times) { return Builder(job).build(times); }

}  // namespace prun::draw
