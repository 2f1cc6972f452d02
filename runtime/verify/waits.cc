// Nobody waits in a circle, within a rank or across ranks.
//
// Across ranks, all streams are executed abstractly with collectives as rendezvous. What blocks there blocks on every
// execution, whatever the timing: an op that can proceed stays able to. Surprising fact: mostly one rank per class
// suffices, because ranks of one class whose groups hold the same classes move in step.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "verify/view.h"

namespace prun::verify {
namespace {

// The first edge of `op` that the streams' progress does not satisfy.
std::optional<Edge> unsatisfied(const Op& op, const std::vector<int>& done) {
  for (const Edge& edge : op.waits) {
    if (edge.back == 0 && done[static_cast<size_t>(edge.stream)] <= edge.index) return edge;
  }
  return std::nullopt;
}

// What executes: a rank, or a class that stands for its ranks.
struct Actor {
  const BodyView* body = nullptr;
  int rank = 0;
  std::vector<int> done;                // ops completed, by stream
  std::vector<bool> arrived;            // by stream: waits in a collective for the others
  std::map<std::string, int> group_of;  // axis (as in Lane) -> which group
};

struct Rendezvous {
  std::vector<std::pair<int, int>> arrived;  // actor, stream
};

class AbstractRun {
 public:
  AbstractRun(const JobView& view, bool init);
  // Runs until nothing moves; true when everything ended.
  bool run();
  std::string circle() const;
  Site site() const;

 private:
  struct At {
    int actor, stream;
    auto operator<=>(const At&) const = default;
  };
  bool one_actor_per_class(const JobView& view, const std::vector<std::string>& axes, bool init);
  void one_actor_per_rank(const JobView& view, const std::vector<std::string>& axes, bool init);
  void add_actor(const BodyView& body, int rank);
  void advance(int actor);
  int group_size(const Actor& actor, const Lane& lane) const;
  std::vector<At> walk() const;
  std::optional<At> blocker(At at) const;
  const Op& op_at(At at) const;

  const Mesh& mesh_;
  std::vector<Actor> actors_;
  std::map<std::pair<std::string, int>, std::vector<int>> members_;  // axis, group -> actors
  std::map<std::pair<int, Lane>, Rendezvous> meetings_;
  std::deque<int> ready_;
};

AbstractRun::AbstractRun(const JobView& view, bool init) : mesh_(view.job->classes.front().mesh) {
  std::vector<std::string> axes = {kWorld};
  for (const Axis& axis : mesh_.axes())
    if (axis.size > 1 && axis.size < mesh_.ranks()) axes.push_back(axis.name);
  if (!one_actor_per_class(view, axes, init)) one_actor_per_rank(view, axes, init);
}

void AbstractRun::add_actor(const BodyView& body, int rank) {
  const size_t streams = body.body->streams.size();
  actors_.push_back({&body, rank, std::vector<int>(streams, 0), std::vector<bool>(streams, false), {}});
}

bool AbstractRun::one_actor_per_class(const JobView& view, const std::vector<std::string>& axes, bool init) {
  const Job& job = *view.job;
  std::vector<std::map<std::string, std::set<int>>> partners(job.classes.size());
  for (const std::string& axis : axes) {
    for (int leader = 0; leader < mesh_.ranks(); leader++) {
      if (mesh_.index(axis, leader) != 0) continue;
      std::set<int> classes;
      for (const int rank : mesh_.group(axis, leader)) classes.insert(job.class_of_rank[static_cast<size_t>(rank)]);
      for (const int id : classes) {
        std::set<int>& known = partners[static_cast<size_t>(id)][axis];
        if (known.empty()) known = classes;
        if (known != classes) return false;
      }
    }
  }
  for (int id = 0; id < static_cast<int>(job.classes.size()); id++) {
    const BodyView& body = view.bodies[static_cast<size_t>(id) * 2 + (init ? 0 : 1)];
    add_actor(body, body.rank);
    for (const std::string& axis : axes) {
      const std::set<int>& classes = partners[static_cast<size_t>(id)][axis];
      actors_.back().group_of[axis] = *classes.begin();
      members_[{axis, *classes.begin()}].push_back(id);
    }
  }
  return true;
}

void AbstractRun::one_actor_per_rank(const JobView& view, const std::vector<std::string>& axes, bool init) {
  for (int rank = 0; rank < mesh_.ranks(); rank++) {
    const size_t id = static_cast<size_t>(view.job->class_of_rank[static_cast<size_t>(rank)]);
    add_actor(view.bodies[id * 2 + (init ? 0 : 1)], rank);
  }
  for (const std::string& axis : axes) {
    for (int leader = 0; leader < mesh_.ranks(); leader++) {
      if (mesh_.index(axis, leader) != 0) continue;
      for (const int rank : mesh_.group(axis, leader)) {
        actors_[static_cast<size_t>(rank)].group_of[axis] = leader;
        members_[{axis, leader}].push_back(rank);
      }
    }
  }
}

int AbstractRun::group_size(const Actor& actor, const Lane& lane) const {
  if (mesh_.size(lane.axis) < 2) return 1;
  return static_cast<int>(members_.at({lane.axis, actor.group_of.at(lane.axis)}).size());
}

void AbstractRun::advance(int id) {
  Actor& actor = actors_[static_cast<size_t>(id)];
  const std::vector<Stream>& streams = actor.body->body->streams;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < streams.size(); s++) {
      while (!actor.arrived[s] && actor.done[s] < static_cast<int>(streams[s].ops.size())) {
        const Op& op = streams[s].ops[static_cast<size_t>(actor.done[s])];
        if (unsatisfied(op, actor.done)) break;
        const Lane lane = op.communicates() ? lane_of(*actor.body->program, op) : Lane{};
        if (op.communicates() && group_size(actor, lane) > 1) {
          Rendezvous& meeting = meetings_[{actor.group_of.at(lane.axis), lane}];
          meeting.arrived.push_back({id, static_cast<int>(s)});
          actor.arrived[s] = true;
          if (static_cast<int>(meeting.arrived.size()) < group_size(actor, lane)) break;
          for (const auto& [other, stream] : meeting.arrived) {
            actors_[static_cast<size_t>(other)].done[static_cast<size_t>(stream)]++;
            actors_[static_cast<size_t>(other)].arrived[static_cast<size_t>(stream)] = false;
            if (other != id) ready_.push_back(other);
          }
          meeting.arrived.clear();
        } else {
          actor.done[s]++;
        }
        moved = true;
      }
    }
  }
}

bool AbstractRun::run() {
  for (int id = 0; id < static_cast<int>(actors_.size()); id++) ready_.push_back(id);
  while (!ready_.empty()) {
    const int id = ready_.front();
    ready_.pop_front();
    advance(id);
  }
  for (const Actor& actor : actors_) {
    for (size_t s = 0; s < actor.done.size(); s++) {
      if (actor.done[s] < static_cast<int>(actor.body->body->streams[s].ops.size())) return false;
    }
  }
  return true;
}

const Op& AbstractRun::op_at(At at) const {
  const Actor& actor = actors_[static_cast<size_t>(at.actor)];
  return actor.body->op({at.stream, actor.done[static_cast<size_t>(at.stream)]});
}

// Whom the blocked stream waits for: another stream of the rank, or the stream of another rank that carries the lane.
std::optional<AbstractRun::At> AbstractRun::blocker(At at) const {
  const Actor& actor = actors_[static_cast<size_t>(at.actor)];
  const Op& op = op_at(at);
  if (!actor.arrived[static_cast<size_t>(at.stream)]) {
    const std::optional<Edge> edge = unsatisfied(op, actor.done);
    return edge ? std::optional<At>({at.actor, edge->stream}) : std::nullopt;
  }
  const Lane lane = lane_of(*actor.body->program, op);
  const Rendezvous& meeting = meetings_.at({actor.group_of.at(lane.axis), lane});
  for (const int other : members_.at({lane.axis, actor.group_of.at(lane.axis)})) {
    const bool here =
        std::any_of(meeting.arrived.begin(), meeting.arrived.end(), [&](auto& who) { return who.first == other; });
    if (here) continue;
    const Actor& late = actors_[static_cast<size_t>(other)];
    const std::vector<Stream>& streams = late.body->body->streams;
    for (size_t s = 0; s < streams.size(); s++) {
      for (size_t i = static_cast<size_t>(late.done[s]); i < streams[s].ops.size(); i++) {
        const Op& next = streams[s].ops[i];
        if (next.communicates() && lane_of(*late.body->program, next) == lane) return At{other, static_cast<int>(s)};
      }
    }
  }
  return std::nullopt;
}

// From the first blocked stream to where the walk closes; only the circle itself.
std::vector<AbstractRun::At> AbstractRun::walk() const {
  std::vector<At> path;
  for (int id = 0; id < static_cast<int>(actors_.size()) && path.empty(); id++) {
    const Actor& actor = actors_[static_cast<size_t>(id)];
    for (size_t s = 0; s < actor.done.size() && path.empty(); s++) {
      if (actor.done[s] < static_cast<int>(actor.body->body->streams[s].ops.size()))
        path.push_back({id, static_cast<int>(s)});
    }
  }
  while (!path.empty()) {
    const std::optional<At> next = blocker(path.back());
    if (!next) break;
    const auto seen = std::find(path.begin(), path.end(), *next);
    if (seen != path.end()) return {seen, path.end()};
    path.push_back(*next);
  }
  return path;
}

Site AbstractRun::site() const { return op_at(walk().front()).site; }

std::string AbstractRun::circle() const {
  const std::vector<At> path = walk();
  std::string text;
  for (size_t i = 0; i < path.size(); i++) {
    const At at = path[i], next = path[(i + 1) % path.size()];
    const Actor& actor = actors_[static_cast<size_t>(at.actor)];
    text += fmt::format("\n  rank {}: {} waits for ", actor.rank,
                        actor.body->describe({at.stream, actor.done[static_cast<size_t>(at.stream)]}));
    if (actor.arrived[static_cast<size_t>(at.stream)]) {
      text += fmt::format("rank {}", actors_[static_cast<size_t>(next.actor)].rank);
    } else {
      const std::optional<Edge> edge = unsatisfied(op_at(at), actor.done);
      text += actor.body->describe({edge->stream, edge->index});
    }
  }
  return text;
}

}  // namespace

void waits_have_no_cycle(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    if (body.ordered()) continue;
    std::vector<int> done;
    for (const Stream& stream : body.body->streams) done.push_back(static_cast<int>(stream.ops.size()));
    for (const OpRef stuck : body.order.stuck()) done[static_cast<size_t>(stuck.stream)] = stuck.index;
    // Every blocked stream waits for a blocked one, so following them comes back.
    std::vector<OpRef> path = {body.order.stuck().front()};
    auto closes = path.end();
    while (true) {
      const Edge edge = *unsatisfied(body.op(path.back()), done);
      const OpRef next{edge.stream, done[static_cast<size_t>(edge.stream)]};
      closes = std::find(path.begin(), path.end(), next);
      if (closes != path.end()) break;
      path.push_back(next);
    }
    path.erase(path.begin(), closes);
    std::string text;
    for (const OpRef at : path) {
      const Edge edge = *unsatisfied(body.op(at), done);
      text += fmt::format("\n  {} waits for {}", body.describe(at), body.describe({edge.stream, edge.index}));
    }
    findings.add("wait cycle", fmt::format("{}these wait for each other{}", body.where(), text),
                 body.op(path.front()).site);
  }
}

void ranks_do_not_wait_in_a_circle(const JobView& view, Findings& findings) {
  // Ranks of one class move in step, so what does not block within a rank does not block across them.
  if (view.job->classes.size() < 2) return;
  for (const bool init : {true, false}) {
    AbstractRun run(view, init);
    if (run.run()) continue;
    findings.add("wait cycle across ranks", "these wait for each other" + run.circle(), run.site());
  }
}

}  // namespace prun::verify
