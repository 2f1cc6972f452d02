#include <fmt/format.h>

#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "chakra/chakra.h"

namespace prun::chakra {
namespace {

using Group = std::pair<std::string, int>;  // key of a group: lane of an axis, first member

class Walk {
 public:
  explicit Walk(const Job& job) : job_(job), ranks_(job.class_of_rank.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].next.assign(body(r).streams.size(), 0);
  }

  std::vector<std::vector<Place>> run() {
    for (size_t r = 0; r < ranks_.size(); ++r) wake(r);
    while (!awake_.empty()) {
      const size_t r = awake_.front();
      awake_.pop_front();
      ranks_[r].awake = false;
      advance(r);
    }
    std::vector<std::vector<Place>> order;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      PRUN_CHECK(static_cast<int64_t>(ranks_[r].order.size()) == body(r).op_count(), fmt::format("rank {}", r));
      order.push_back(std::move(ranks_[r].order));
    }
    return order;
  }

 private:
  struct Rank {
    std::vector<int> next;  // state by stream
    std::vector<Place> order;
    bool awake = false;
  };
  struct Meeting {
    std::vector<std::pair<size_t, int>> waiting;  // rank and stream
  };

  const Body& body(size_t rank) const { return job_.program(static_cast<int>(rank)).step(); }

  void wake(size_t rank) {
    if (std::exchange(ranks_[rank].awake, true)) return;
    awake_.push_back(rank);
  }

  void advance(size_t rank) {
    const auto& streams = body(rank).streams;
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < std::ssize(streams); ++s)
        while (ranks_[rank].next[static_cast<size_t>(s)] < std::ssize(streams[s].ops) && step(rank, s)) moved = true;
    }
  }

  // Runs the next op of the stream if it can run now; returns whether it has ended.
  bool step(size_t rank, int s) {
    const Op& op = body(rank).streams[s].ops[static_cast<size_t>(ranks_[rank].next[static_cast<size_t>(s)])];
    for (const Edge& edge : op.waits)
      if (edge.back == 0 && ranks_[rank].next[static_cast<size_t>(edge.stream.index())] <= edge.index) return false;
    if (!op.communicates() || op.offers()) return end(rank, s);
    const Mesh& mesh = job_.classes.front().mesh;
    const std::vector<int> members = members_of(mesh, op, static_cast<int>(rank));
    const std::string lane = fmt::format("{}/{}", op.axis, op.lane);
    if (op.point_to_point()) {
      int& sent = sent_[{fmt::format("{}/{}", lane, members[1]), members[0]}];
      if (op.sends()) {
        ++sent;
        wake(static_cast<size_t>(members[1]));
      } else if (sent-- == 0) {
        return sent = 0, false;
      }
      return end(rank, s);
    }
    return meet(meetings_[{lane, members.front()}], members.size(), rank, s);
  }

  bool meet(Meeting& meeting, size_t members, size_t rank, int s) {
    for (const auto& [other, stream] : meeting.waiting)
      if (other == rank && stream == s) return false;
    meeting.waiting.emplace_back(rank, s);
    if (meeting.waiting.size() < members) return false;
    for (const auto& [other, stream] : std::exchange(meeting.waiting, {})) {
      end(other, stream);
      wake(other);
    }
    return true;
  }

  bool end(size_t rank, int s) {
    int& next = ranks_[rank].next[static_cast<size_t>(s)];
    ranks_[rank].order.push_back({s, next++});
    return true;
  }

  const Job& job_;
  std::vector<Rank> ranks_;
  std::deque<size_t> awake_;
  std::map<Group, Meeting> meetings_;
  std::map<Group, int> sent_;  // messages not received yet, by lane with receiver, and sender
};

}  // namespace

std::vector<std::vector<Place>> op_order(const Job& job) { return Walk(job).run(); }

}  // namespace prun::chakra
