// The abstract execution of all ranks. Collectives are rendezvous of their group, messages of their pair.
#include "verify/abstract_run.h"

#include <fmt/format.h>

#include <algorithm>

namespace prun::verify {
namespace {

const BodyView& body_of(const JobView& view, size_t id, bool init) { return view.bodies[id * 2 + (init ? 0 : 1)]; }

}  // namespace

AbstractRun::AbstractRun(const JobView& view, bool init, int credits)
    : job_(*view.job), mesh_(job_.classes.front().mesh), credits_(credits) {
  std::vector<std::string> axes = {kWorld};
  for (const Axis& axis : mesh_.axes())
    if (axis.size > 1 && axis.size < mesh_.ranks()) axes.push_back(axis.name);
  by_class_ = peers_are_of_one_class(view, init) && one_actor_per_class(view, axes, init);
  if (!by_class_) one_actor_per_rank(view, axes, init);
}

void AbstractRun::add_actor(const BodyView& body, int rank) {
  const size_t streams = body.body->streams.size();
  actors_.push_back({&body, rank, std::vector<int>(streams, 0), std::vector<bool>(streams, false), {}});
}

// Whether the ranks of each class send to, and receive from, ranks of one class.
bool AbstractRun::peers_are_of_one_class(const JobView& view, bool init) const {
  for (size_t id = 0; id < job_.classes.size(); id++) {
    std::set<std::pair<std::string, int64_t>> known;
    for (const OpRef ref : body_of(view, id, init).order.sequence()) {
      const Op& op = body_of(view, id, init).op(ref);
      if (!op.point_to_point() || !known.insert({op.axis, op.attrs.integer("peer")}).second) continue;
      int of = -1;
      for (int rank = 0; rank < mesh_.ranks(); rank++) {
        if (job_.class_of_rank[rank] != static_cast<int>(id)) continue;
        const int peer = job_.class_of_rank[peer_rank(mesh_, op, rank)];
        if (of >= 0 && of != peer) return false;
        of = peer;
      }
    }
  }
  return true;
}

bool AbstractRun::one_actor_per_class(const JobView& view, const std::vector<std::string>& axes, bool init) {
  std::vector<std::map<std::string, std::set<int>>> partners(job_.classes.size());
  for (const std::string& axis : axes) {
    for (int leader = 0; leader < mesh_.ranks(); leader++) {
      if (mesh_.index(axis, leader) != 0) continue;
      std::set<int> classes;
      for (const int rank : mesh_.group(axis, leader)) classes.insert(job_.class_of_rank[rank]);
      for (const int id : classes) {
        std::set<int>& known = partners[id][axis];
        if (known.empty()) known = classes;
        if (known != classes) return false;
      }
    }
  }
  for (int id = 0; id < std::ssize(job_.classes); id++) {
    const BodyView& body = body_of(view, static_cast<size_t>(id), init);
    add_actor(body, body.rank);
    for (const std::string& axis : axes) {
      const std::set<int>& classes = partners[id][axis];
      actors_.back().group_of[axis] = *classes.begin();
      members_[{axis, *classes.begin()}].push_back(id);
    }
  }
  return true;
}

void AbstractRun::one_actor_per_rank(const JobView& view, const std::vector<std::string>& axes, bool init) {
  for (int rank = 0; rank < mesh_.ranks(); rank++) {
    add_actor(body_of(view, static_cast<size_t>(job_.class_of_rank[rank]), init), rank);
  }
  for (const std::string& axis : axes) {
    for (int leader = 0; leader < mesh_.ranks(); leader++) {
      if (mesh_.index(axis, leader) != 0) continue;
      for (const int rank : mesh_.group(axis, leader)) {
        actors_[rank].group_of[axis] = leader;
        members_[{axis, leader}].push_back(rank);
      }
    }
  }
}

int AbstractRun::group_size(const Actor& actor, const Lane& lane) const {
  if (mesh_.size(lane.axis) < 2) return 1;
  return static_cast<int>(members_.at({lane.axis, actor.group_of.at(lane.axis)}).size());
}

int AbstractRun::peer_of(const Actor& actor, const Op& op) const {
  const int peer = peer_rank(mesh_, op, actor.rank);
  return by_class_ ? job_.class_of_rank[peer] : peer;
}

AbstractRun::Channel AbstractRun::channel_of(int id, const Op& op) const {
  const Actor& actor = actors_[id];
  const int size = mesh_.size(op.axis), offset = peer_offset(mesh_, op);
  const Lane lane = lane_of(*actor.body->program, op);
  return op.sends() ? Channel{id, offset, lane} : Channel{peer_of(actor, op), (size - offset) % size, lane};
}

void AbstractRun::complete(At at) {
  Actor& actor = actors_[at.actor];
  actor.done[at.stream]++;
  actor.arrived[at.stream] = false;
  ready_.push_back(at.actor);
}

bool AbstractRun::send(At at, Traffic& traffic) {
  if (!traffic.receives.empty()) {
    complete(traffic.receives.front());
    traffic.receives.pop_front();
    return true;
  }
  if (traffic.on_the_way < credits_) {
    traffic.on_the_way++;
    return true;
  }
  traffic.sends.push_back(at);
  return false;
}

bool AbstractRun::receive(At at, Traffic& traffic) {
  if (traffic.on_the_way > 0) {
    traffic.on_the_way--;
  } else if (traffic.sends.empty()) {
    traffic.receives.push_back(at);
    return false;
  }
  if (!traffic.sends.empty()) {  // met, or the next message leaves
    if (credits_ > 0) traffic.on_the_way++;
    complete(traffic.sends.front());
    traffic.sends.pop_front();
  }
  return true;
}

// A put waits for an offer, whatever the class of transport; nothing but the put itself holds up its receiver.
bool AbstractRun::one_sided(At at, const Op& op, Traffic& traffic) {
  if (!op.sends()) return receive(at, traffic);
  if (traffic.offers == 0) {
    traffic.puts.push_back(at);
    return false;
  }
  traffic.offers--;
  put(traffic);
  return true;
}

bool AbstractRun::offer(Traffic& traffic) {
  if (traffic.puts.empty()) {
    traffic.offers++;
    return true;
  }
  complete(traffic.puts.front());
  traffic.puts.pop_front();
  put(traffic);
  return true;
}

void AbstractRun::put(Traffic& traffic) {
  if (traffic.receives.empty()) {
    traffic.on_the_way++;
    return;
  }
  complete(traffic.receives.front());
  traffic.receives.pop_front();
}

bool AbstractRun::begin(At at, const Op& op) {
  Actor& actor = actors_[at.actor];
  if (!op.communicates()) return true;
  const Lane lane = lane_of(*actor.body->program, op);
  if (op.point_to_point()) {
    Traffic& traffic = channels_[channel_of(at.actor, op)];
    if (op.one_sided()) return one_sided(at, op, traffic);
    return op.sends() ? send(at, traffic) : receive(at, traffic);
  }
  if (op.offers()) return offer(channels_[channel_of(at.actor, op)]);
  if (group_size(actor, lane) < 2) return true;
  std::vector<At>& meeting = meetings_[{actor.group_of.at(lane.axis), lane}];
  if (static_cast<int>(meeting.size()) + 1 < group_size(actor, lane)) {
    meeting.push_back(at);
    return false;
  }
  for (const At other : meeting) complete(other);
  meeting.clear();
  return true;
}

void AbstractRun::advance(int id) {
  Actor& actor = actors_[id];
  const std::vector<Stream>& streams = actor.body->body->streams;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < streams.size(); s++) {
      while (!actor.arrived[s] && actor.done[s] < std::ssize(streams[s].ops)) {
        const Op& op = streams[s].ops[actor.done[s]];
        if (unsatisfied(op, actor.done)) break;
        if (!begin({id, static_cast<int>(s)}, op)) {
          actor.arrived[s] = true;
          break;
        }
        actor.done[s]++;
        moved = true;
      }
    }
  }
}

bool AbstractRun::run() {
  for (int id = 0; id < std::ssize(actors_); id++) ready_.push_back(id);
  while (!ready_.empty()) {
    const int id = ready_.front();
    ready_.pop_front();
    advance(id);
  }
  for (const Actor& actor : actors_) {
    for (size_t s = 0; s < actor.done.size(); s++) {
      if (actor.done[s] < std::ssize(actor.body->body->streams[s].ops)) return false;
    }
  }
  return true;
}

const Op& AbstractRun::op_at(At at) const {
  const Actor& actor = actors_[at.actor];
  return actor.body->op({at.stream, actor.done[at.stream]});
}

// The stream of `id` that will carry the partner of an op: the next collective of the lane, or the next message.
std::optional<AbstractRun::At> AbstractRun::carrier(int id, const Op& partner, const Lane& lane) const {
  const Actor& late = actors_[id];
  const std::vector<Stream>& streams = late.body->body->streams;
  for (size_t s = 0; s < streams.size(); s++) {
    for (size_t i = static_cast<size_t>(late.done[s]); i < streams[s].ops.size(); i++) {
      const Op& next = streams[s].ops[i];
      if (!next.communicates() || lane_of(*late.body->program, next) != lane) continue;
      const bool fits = partner.point_to_point()
                            ? next.point_to_point() && next.sends() != partner.sends() &&
                                  (peer_offset(mesh_, next) + peer_offset(mesh_, partner)) % mesh_.size(next.axis) == 0
                            : !next.point_to_point();
      if (fits) return At{id, static_cast<int>(s)};
    }
  }
  return std::nullopt;
}

// Whom the blocked stream waits for: another stream of the rank, or the stream of another rank that carries the lane.
std::optional<AbstractRun::At> AbstractRun::blocker(At at) const {
  const Actor& actor = actors_[at.actor];
  const Op& op = op_at(at);
  if (!actor.arrived[at.stream]) {
    const std::optional<Edge> edge = unsatisfied(op, actor.done);
    return edge ? std::optional<At>({at.actor, edge->stream}) : std::nullopt;
  }
  const Lane lane = lane_of(*actor.body->program, op);
  if (op.point_to_point()) return carrier(peer_of(actor, op), op, lane);
  const std::vector<At>& meeting = meetings_.at({actor.group_of.at(lane.axis), lane});
  for (const int other : members_.at({lane.axis, actor.group_of.at(lane.axis)})) {
    const bool here = std::any_of(meeting.begin(), meeting.end(), [&](At who) { return who.actor == other; });
    if (here) continue;
    if (const std::optional<At> found = carrier(other, op, lane)) return found;
  }
  return std::nullopt;
}

// From the first blocked stream to where the walk closes; only the circle itself.
std::vector<AbstractRun::At> AbstractRun::walk() const {
  std::vector<At> path;
  for (int id = 0; id < std::ssize(actors_) && path.empty(); id++) {
    const Actor& actor = actors_[id];
    for (size_t s = 0; s < actor.done.size() && path.empty(); s++) {
      if (actor.done[s] < std::ssize(actor.body->body->streams[s].ops))
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
    const Actor& actor = actors_[at.actor];
    text += fmt::format("\n  rank {}: {} waits for ", actor.rank,
                        actor.body->describe({at.stream, actor.done[at.stream]}));
    if (!actor.arrived[at.stream]) {
      const std::optional<Edge> edge = unsatisfied(op_at(at), actor.done);
      text += actor.body->describe({edge->stream, edge->index});
    } else if (op_at(at).point_to_point()) {
      text += fmt::format("rank {}", peer_rank(mesh_, op_at(at), actor.rank));
    } else {
      text += fmt::format("rank {}", actors_[next.actor].rank);
    }
  }
  return text;
}

void ranks_do_not_wait_in_a_circle(const JobView& view, Findings& findings) {
  // Ranks of one class move in step, so what does not block within a rank blocks across them in messages only.
  const bool messages = std::any_of(view.bodies.begin(), view.bodies.end(), sends_messages);
  if (view.job->classes.size() < 2 && !messages) return;
  for (const bool init : {true, false}) {
    AbstractRun run(view, init, 0);
    if (run.run()) continue;
    findings.add("wait cycle across ranks", "these wait for each other" + run.circle(), run.site());
  }
}

}  // namespace prun::verify
