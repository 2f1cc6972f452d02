// Models collectives as a rendezvous of their group, messages as a queue per pair of ranks, and one-sided messages as
// windows that their receiver opens.
#include "ir/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace prun {

Lane lane_of(const Program& program, const Op& op) {
  const bool all = op.axis == kWorld || program.mesh.size(op.axis) == program.mesh.ranks();
  return {all ? kWorld : op.axis, op.lane};
}

std::string lane_text(const Lane& lane) { return fmt::format("{} (lane {})", lane.axis, lane.lane); }

int peer_offset(const Mesh& mesh, const Op& op) {
  const int size = mesh.size(op.axis);
  return static_cast<int>((op.attrs.integer("peer") % size + size) % size);
}

int peer_rank(const Mesh& mesh, const Op& op, int rank) {
  const std::vector<int> pair = members_of(mesh, op, rank);
  return op.sends() ? pair[1] : pair[0];
}

std::optional<Edge> unsatisfied(const Op& op, const Table<StreamId, int>& done) {
  for (const Edge& edge : op.waits) {
    if (edge.back > 0) continue;
    if (!done.has(edge.stream) || done[edge.stream] <= edge.index) return edge;
  }
  return std::nullopt;
}

Walk::Walk(const Body& body, WalkPolicy& policy) : policy_(policy) { add_actor(body, 0); }

Walk::Walk(const Job& job, const std::vector<const Body*>& bodies, By by, WalkPolicy& policy, Repeats repeats)
    : job_(&job), mesh_(&job.classes.front().mesh), policy_(policy), repeats_(repeats), axes_({kWorld}) {
  for (const Axis& axis : mesh_->axes())
    if (axis.size > 1 && axis.size < mesh_->ranks()) axes_.push_back(axis.name);
  by_class_ = by == By::class_ || (by == By::class_if_alike && classes_are_alike(bodies));
  if (by_class_) {
    for (int id = 0; id < std::ssize(job.classes); ++id) {
      const auto first = std::find(job.class_of_rank.begin(), job.class_of_rank.end(), id);
      add_actor(*bodies[id], first - job.class_of_rank.begin());
    }
  } else {
    for (int rank = 0; rank < mesh_->ranks(); ++rank) add_actor(*bodies[job.class_of_rank[rank]], rank);
  }
  find_groups();
}

void Walk::add_actor(const Body& body, int rank) {
  const size_t streams = body.streams.size();
  moved_.push_back(std::ssize(actors_));
  Table<StreamId, int> size;
  for (StreamId stream : body.streams.ids())
    size.push_back(repeats_ == Repeats::run ? WrittenOut(body).ops(stream) : std::ssize(body.streams[stream].ops));
  actors_.push_back({&body,
                     rank,
                     Table<StreamId, int>(streams, 0),
                     std::move(size),
                     Table<StreamId, bool>(streams, false),
                     {},
                     Table<StreamId, Awaited>(streams)});
}

// Returns whether the ranks of each class have groups of the same classes, and exchange messages with ranks of one
// class.
bool Walk::classes_are_alike(const std::vector<const Body*>& bodies) const {
  const std::vector<int>& class_of = job_->class_of_rank;
  std::map<std::pair<int, std::string>, std::set<int>> partners;
  for (const std::string& axis : axes_) {
    for (int leader = 0; leader < mesh_->ranks(); ++leader) {
      if (mesh_->index(axis, leader) != 0) continue;
      std::set<int> classes;
      for (const int rank : mesh_->group(axis, leader)) classes.insert(class_of[rank]);
      for (const int id : classes)
        if (partners.try_emplace({id, axis}, classes).first->second != classes) return false;
    }
  }
  for (int id = 0; id < std::ssize(bodies); ++id) {
    std::set<std::pair<std::string, int64_t>> known;
    for (const Stream& stream : bodies[id]->streams) {
      for (const Op& op : stream.ops) {
        if (!op.point_to_point() || !known.insert({op.axis, op.attrs.integer("peer")}).second) continue;
        std::set<int> peers;
        for (int rank = 0; rank < mesh_->ranks(); ++rank)
          if (class_of[rank] == id) peers.insert(class_of[peer_rank(*mesh_, op, rank)]);
        if (peers.size() > 1) return false;
      }
    }
  }
  return true;
}

void Walk::find_groups() {
  std::map<std::vector<int>, int> of_ranks;  // axes with the same groups share them
  for (const std::string& axis : axes_) {
    std::map<std::vector<int>, int> of_classes;  // groups of the same classes along two axes are different groups
    std::map<std::vector<int>, int>& known = by_class_ && mesh_->size(axis) < mesh_->ranks() ? of_classes : of_ranks;
    std::vector<int> group_of(mesh_->ranks(), -1);
    for (Actor& actor : actors_) {
      if (group_of[actor.rank] < 0) {
        const std::vector<int> ranks = mesh_->group(axis, actor.rank);
        std::vector<int> members = ranks;
        if (by_class_) {
          std::set<int> classes;
          for (const int rank : ranks) classes.insert(job_->class_of_rank[rank]);
          members.assign(classes.begin(), classes.end());
        }
        const auto [group, fresh] = known.try_emplace(members, members_.size());
        if (fresh) members_.push_back(members);
        if (by_class_)
          group_of[actor.rank] = group->second;
        else
          for (const int rank : ranks) group_of[rank] = group->second;
      }
      actor.groups.push_back(group_of[actor.rank]);
    }
  }
}

size_t Walk::axis_of(const Op& op) const {
  const auto found = std::find(axes_.begin(), axes_.end(), op.axis);
  return found == axes_.end() ? 0 : found - axes_.begin();  // an axis over all ranks is the world
}

int Walk::peer(const Actor& actor, const Op& op) const {
  const int rank = peer_rank(*mesh_, op, actor.rank);
  return by_class_ ? job_->class_of_rank[rank] : rank;
}

int Walk::channel(StreamCursor at) {
  const Op& op = this->op(at);
  const int axis = axis_of(op), size = mesh_->size(op.axis), offset = peer_offset(*mesh_, op);
  const ChannelKey key = op.sends() ? ChannelKey{at.actor, axis, offset, op.lane}
                                    : ChannelKey{peer(actors_[at.actor], op), axis, (size - offset) % size, op.lane};
  const auto [found, fresh] = channel_index_.try_emplace(key, channels_.size());
  if (fresh) channels_.emplace_back();
  return found->second;
}

std::optional<Edge> Walk::missing_edge(StreamCursor at) const {
  const Actor& actor = actors_[at.actor];
  const WrittenOut::Place here = place(at);
  const Op& waiting = stream(at).ops[here.index];
  if (here.copy == 0) return unsatisfied(waiting, actor.done);
  const WrittenOut places(*actor.body);
  for (const Edge& edge : waiting.waits)
    if (edge.back == 0 && actor.done[edge.stream] <= places.target(edge.stream, edge.index, here.copy)) return edge;
  return std::nullopt;
}

void Walk::complete(StreamCursor at) {
  Actor& actor = actors_[at.actor];
  actor.done[at.stream]++;
  actor.arrived[at.stream] = false;
  moved_.push_back(at.actor);
}

void Walk::send(StreamCursor at, Channel& channel) {
  policy_.send(at);
  if (channel.receives.empty()) {
    channel.under_way++;
    return;
  }
  const StreamCursor receiver = channel.receives.front();
  channel.receives.pop_front();
  policy_.receive(receiver);
  complete_at_once(receiver);
}

// Returns whether the op has ended; its partners may end with it.
bool Walk::message(StreamCursor at, Channel& channel) {
  const auto wait_in = [&](std::deque<StreamCursor>& queue) {
    queue.push_back(at);
    return false;
  };
  const auto let_go = [&](std::deque<StreamCursor>& queue) {
    const StreamCursor sender = queue.front();
    queue.pop_front();
    send(sender, channel);
    complete_at_once(sender);
  };
  const Op& op = this->op(at);
  if (op.offers()) {
    policy_.run(at);
    channel.offers++;
  } else if (op.sends()) {
    if (op.one_sided() ? channel.offers == 0 : channel.receives.empty() && !policy_.buffers(channel.under_way))
      return wait_in(op.one_sided() ? channel.puts : channel.sends);
    send(at, channel);
    if (op.one_sided()) channel.offers--;
  } else {
    if (channel.under_way == 0 && !channel.sends.empty()) let_go(channel.sends);  // rendezvous
    if (channel.under_way == 0) return wait_in(channel.receives);
    channel.under_way--;
    policy_.receive(at);
    while (!channel.sends.empty() && policy_.buffers(channel.under_way)) let_go(channel.sends);
  }
  if (!channel.puts.empty() && channel.offers > 0) {
    channel.offers--;
    let_go(channel.puts);
  }
  return true;
}

bool Walk::begin(StreamCursor at) {
  const Op& op = this->op(at);
  const bool alone = job_ == nullptr || !op.communicates();
  if (!alone && (op.point_to_point() || op.offers())) return message(at, channels_[channel(at)]);
  const int group = alone ? -1 : actors_[at.actor].groups[axis_of(op)];
  if (alone || mesh_->size(op.axis) < 2 || members_[group].size() < 2) {
    policy_.run(at);
    return true;
  }
  const std::vector<int>& members = members_[group];
  std::vector<StreamCursor>& arrived = meetings_[{group, op.lane}];
  arrived.push_back(at);
  if (arrived.size() < members.size()) return false;
  const std::vector<StreamCursor> all = std::exchange(arrived, {});
  std::vector<StreamCursor> in_order(members.size());
  for (const StreamCursor each : all)
    in_order[std::find(members.begin(), members.end(), each.actor) - members.begin()] = each;
  policy_.meet(in_order);
  for (const StreamCursor each : all)
    if (!(each == at)) complete_at_once(each);
  return true;
}

void Walk::step(StreamCursor at) {
  Actor& actor = actors_[at.actor];
  if (begin(at) && !policy_.takes_time()) {
    actor.done[at.stream]++;
  } else {
    actor.arrived[at.stream] = true;
  }
}

// Most blocked streams still wait for the same op, so that their next op need not be read again.
bool Walk::is_blocked(StreamCursor at) {
  Actor& actor = actors_[at.actor];
  Awaited& awaited = actor.awaited[at.stream];
  if (awaited.index >= 0 && actor.done[awaited.stream] <= awaited.index) return true;
  awaited.index = -1;
  const std::optional<Edge> edge = missing_edge(at);
  if (edge && actor.done.has(edge->stream)) {
    const int64_t copy = place(at).copy;
    awaited = {edge->stream, copy == 0 ? edge->index : WrittenOut(*actor.body).target(edge->stream, edge->index, copy)};
  }
  return edge.has_value();
}

void Walk::advance(int id) {
  Actor& actor = actors_[id];
  for (bool moved = true; moved;) {
    moved = false;
    for (const StreamId s : actor.done.ids()) {
      while (!actor.arrived[s] && unfinished(id, s) && !is_blocked({id, s})) {
        step({id, s});
        moved = true;
      }
    }
  }
}

bool Walk::run() {
  while (!moved_.empty()) {
    const int id = moved_.front();
    moved_.pop_front();
    advance(id);
  }
  return ended();
}

bool Walk::ended() const {
  for (int id = 0; id < std::ssize(actors_); ++id)
    for (const StreamId s : actors_[id].done.ids())
      if (unfinished(id, s)) return false;
  return true;
}

std::vector<StreamCursor> Walk::ready() const {
  std::vector<StreamCursor> list;
  for (int id = 0; id < std::ssize(actors_); ++id)
    for (const StreamId s : actors_[id].done.ids())
      if (!actors_[id].arrived[s] && unfinished(id, s) && !missing_edge({id, s})) list.push_back({id, s});
  return list;
}

bool Walk::release() {
  for (int id = 0; id < std::ssize(actors_); ++id) {
    for (const StreamId s : actors_[id].done.ids()) {
      if (!actors_[id].arrived[s]) continue;
      const StreamCursor at{id, s};
      const Op& waiting = op(at);
      if (waiting.point_to_point()) {
        Channel& queues = channels_[channel(at)];
        for (std::deque<StreamCursor>* queue : {&queues.sends, &queues.receives, &queues.puts}) std::erase(*queue, at);
        waiting.sends() ? policy_.send(at) : policy_.receive(at);
      } else {
        std::erase(meetings_.at({actors_[id].groups[axis_of(waiting)], waiting.lane}), at);
        policy_.meet({at});
      }
      complete(at);
      return true;
    }
  }
  return false;
}

// Returns the stream of an actor that will issue the partner of an op: the lane's next collective, or the next message.
std::optional<StreamCursor> Walk::carrier(int id, const Op& partner) const {
  const Actor& late = actors_[id];
  for (const StreamId s : late.done.ids()) {
    const std::vector<Op>& ops = late.body->streams[s].ops;
    for (int i = place({id, s}).index; i < std::ssize(ops); ++i) {
      const Op& next = ops[i];
      if (!next.communicates() || next.lane != partner.lane || axis_of(next) != axis_of(partner)) continue;
      const bool fits =
          partner.point_to_point()
              ? next.point_to_point() && next.sends() != partner.sends() &&
                    (peer_offset(*mesh_, next) + peer_offset(*mesh_, partner)) % mesh_->size(next.axis) == 0
              : !next.point_to_point();
      if (fits) return StreamCursor{id, s};
    }
  }
  return std::nullopt;
}

// Returns the stream that a blocked one waits for: another of its rank, or the one of another actor with its partner.
std::optional<StreamCursor> Walk::blocker(StreamCursor at) const {
  const Actor& actor = actors_[at.actor];
  const Op& waiting = op(at);
  if (!actor.arrived[at.stream]) {
    const std::optional<Edge> edge = missing_edge(at);
    return edge ? std::optional<StreamCursor>({at.actor, edge->stream}) : std::nullopt;
  }
  if (waiting.point_to_point()) return carrier(peer(actor, waiting), waiting);
  const int group = actor.groups[axis_of(waiting)];
  const std::vector<StreamCursor>& here = meetings_.at({group, waiting.lane});
  for (const int other : members_[group]) {
    if (std::any_of(here.begin(), here.end(), [&](StreamCursor who) { return who.actor == other; })) continue;
    if (const std::optional<StreamCursor> found = carrier(other, waiting)) return found;
  }
  return std::nullopt;
}

std::vector<StreamCursor> Walk::circle() const {
  std::vector<StreamCursor> path;
  for (int id = 0; id < std::ssize(actors_) && path.empty(); ++id)
    for (StreamId s = 0; s < std::ssize(actors_[id].done) && path.empty(); ++s)
      if (unfinished(id, s)) path.push_back({id, s});
  while (!path.empty()) {
    const std::optional<StreamCursor> next = blocker(path.back());
    if (!next) break;
    const auto seen = std::find(path.begin(), path.end(), *next);
    if (seen != path.end()) return {seen, path.end()};
    path.push_back(*next);
  }
  return path;
}

}  // namespace prun
