// At each instant all ops that can end do end and all that can begin do begin; only then are rates updated. Therefore
// the order in which the walk visits ops changes no figure, and one rank of a colour has the times of all.
#include "simulate/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ir/carried.h"
#include "ir/op_cost.h"
#include "ir/ops.h"

namespace prun::simulate {
namespace {

// Bandwidth between host and device memory if the cluster file has no figure; that of PCIe 4 x16.
constexpr double kHostBytesPerSecond = 25e9;

// Bytes of device memory per byte that a rank sends. In NCCL's kernels data arrive in a buffer (one write), are read
// from it, and are reduced with another operand (one read) or copied to the result (one write): recvReduceSend and
// recvCopySend in src/device/all_reduce.h. A message passes a buffer likewise.
constexpr double kMemoryPerSent = 3;
constexpr double kMostTaken = 0.9;  // share of multiprocessors or bandwidth that transfers take at most

// Returns whether the op waits for op `before` of the previous step: an edge with back = 1, or the first op of the same
// stream.
bool follows(const Op& op, OpRef at, OpRef before) {
  if (at.stream == before.stream && at.index == 0) return true;
  return std::ranges::any_of(op.waits, [&](const Edge& edge) {
    return edge.back == 1 && edge.stream == before.stream && edge.index == before.index;
  });
}

}  // namespace

Clock::Clock(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places, const RankColours& colours,
             bool keep_spans, std::vector<double> slowness)
    : job_(job),
      cluster_(cluster),
      places_(places),
      colours_(colours),
      keep_spans_(keep_spans),
      slowness_(std::move(slowness)) {
  walked_.class_of_rank = colours.of_rank;
  for (const int rank : colours.first) {
    walked_.classes.emplace_back().mesh = job.classes.front().mesh;
    bodies_.push_back(&job.program(rank).step());
    Actor& actor = actors_.emplace_back(job.program(rank));
    for (const Stream& stream : bodies_.back()->streams) actor.ends.emplace_back(stream.ops.size(), 0.0);
    actor.ended = ended_with(*bodies_.back());
    for (const int ops : actor.ended) left_ += ops;
  }
  usage_.resize(actors_.size());
  spans_.resize(actors_.size());
  walk_.emplace(walked_, bodies_, Walk::By::class_, static_cast<WalkPolicy&>(*this));
}

const Program& Clock::program(StreamCursor at) const { return job_.program(colours_.first[at.actor]); }

const DeviceModel& Clock::device(StreamCursor at) const {
  return cluster_.node_at(places_[colours_.first[at.actor]].node).device;
}

double Clock::ready_time(StreamCursor at) const {
  const Actor& actor = actors_[at.actor];
  const OpRef ref = walk_->ref(at);
  double ready = ref.index > 0 ? actor.ends[at.stream][ref.index - 1] : 0;
  for (const Edge& edge : walk_->op(at).waits)
    if (edge.back == 0) ready = std::max(ready, actor.ends[edge.stream][edge.index]);
  for (const auto& [op, end] : actor.before)
    if (follows(walk_->op(at), ref, op)) ready = std::max(ready, end);
  return ready;
}

void Clock::begin_with(const std::vector<LeftOver>& left) {
  for (const LeftOver& over : left)
    for (size_t i = 0; i < over.at.size(); ++i) actors_[over.at[i].actor].before[over.ops[i]] = -1;
  left_before_ = left;
  begin_left_over();
}

// Returns whether another carried-over op must end first: a predecessor in its stream, or an op that it waits for.
bool Clock::awaits_left_over(const LeftOver& over) const {
  for (size_t i = 0; i < over.at.size(); ++i) {
    const int actor = over.at[i].actor;
    const OpRef ref = over.ops[i];
    const auto awaited = [&](OpRef op) {
      return (op.stream == ref.stream && op.index < ref.index) ||
             std::ranges::any_of(bodies_[actor]->streams[ref.stream].ops[ref.index].waits, [&](const Edge& edge) {
               return edge.back == 0 && edge.stream == op.stream && edge.index == op.index;
             });
    };
    for (const auto& [op, end] : actors_[actor].before)
      if (end < 0 && awaited(op)) return true;
  }
  return false;
}

void Clock::begin_left_over() {
  for (LeftOver& over : std::exchange(left_before_, {})) {
    if (awaits_left_over(over)) {
      left_before_.push_back(std::move(over));
      continue;
    }
    Task task;
    task.ops = over.ops;
    task.kind = over.computes ? Kind::compute : Kind::collective;
    task.bound = over.bound;
    task.level = over.level;
    task.of_step_before = true;
    begin(std::move(task), over.at, over.seconds);
  }
}

bool Clock::awaits_step_before(StreamCursor at) const {
  return std::ranges::any_of(actors_[at.actor].before, [&](const auto& each) {
    return each.second < 0 && follows(walk_->op(at), walk_->ref(at), each.first);
  });
}

bool Clock::put_off(Members members) {
  if (std::ranges::none_of(members, [&](StreamCursor at) { return awaits_step_before(at); })) return false;
  put_off_.emplace_back(members.begin(), members.end());
  return true;
}

void Clock::take_up() {
  for (const std::vector<StreamCursor>& members : std::exchange(put_off_, {}))
    members.size() == 1 ? run(members.front()) : meet(members);
}

void Clock::end_step() {
  for (size_t id = 0; id < actors_.size(); ++id) account(actors_[id], usage_[id]);
  step_s_ = now_;
  for (Task& task : tasks_)
    if (!task.ended) task.left_at_end = task.left - (now_ - task.since) * task.rate;
}

std::vector<LeftOver> Clock::left_over() const {
  std::vector<LeftOver> left;
  for (const Task& task : tasks_)
    if (task.left_at_end > 0)
      left.push_back({task.at, task.ops, task.kind == Kind::compute, task.bound, task.level, task.left_at_end});
  return left;
}

// An op that waited for another stream pays the time to wake its own stream.
double Clock::wake_time(StreamCursor at) const {
  const double wake = device(at).wake_s;
  if (wake == 0) return 0;
  const OpRef ref = walk_->ref(at);
  const double before = ref.index > 0 ? actors_[at.actor].ends[at.stream][ref.index - 1] : 0;
  return ready_time(at) > before ? wake : 0;
}

void Clock::touch(int id) {
  Actor& actor = actors_[id];
  account(actor, usage_[id]);
  if (actor.touched) return;
  actor.touched = true;
  touched_.push_back(id);
}

// Attributes the time since the actor's last change to a part of its usage.
void Clock::account(Actor& actor, Usage& usage) const {
  const double passed = now_ - actor.accounted;
  actor.accounted = now_;
  if (passed <= 0 || step_s_ >= 0) return;
  int level = -1;
  for (int l = 0; l < kLevels; ++l)
    if (actor.out[l] + actor.in[l] > 0) usage.transferring[level = l] += passed;
  if (actor.computing > 0) {
    for (const int id : actor.running)
      if (tasks_[id].kind == Kind::compute) {
        usage.computing[static_cast<size_t>(tasks_[id].bound)] += passed;
        return;
      }
  } else if (level >= 0) {
    usage.exposed[level] += passed;
  } else if (actor.copying > 0) {
    usage.copying += passed;
  } else {
    usage.idle += passed;
  }
}

void Clock::join_task(int id, StreamCursor at) {
  touch(at.actor);
  Task& task = tasks_[id];
  Actor& actor = actors_[at.actor];
  task.at.push_back(at);
  actor.running.push_back(id);
  if (task.kind == Kind::compute) actor.computing++;
  if (task.kind == Kind::copy) actor.copying++;
  actor.occupied += task.occupied;
  actor.traffic += task.traffic;
  const bool sends = walk_->op(at).sends();
  if (task.kind == Kind::collective || (task.kind == Kind::message && sends)) actor.out[task.level]++;
  if (task.kind == Kind::collective || (task.kind == Kind::message && !sends)) actor.in[task.level]++;
}

void Clock::leave(int id) {
  Task& task = tasks_[id];
  task.ended = true;
  for (const StreamCursor at : task.at) {
    touch(at.actor);
    Actor& actor = actors_[at.actor];
    std::erase(actor.running, id);
    if (task.kind == Kind::compute) actor.computing--;
    if (task.kind == Kind::copy) actor.copying--;
    actor.occupied -= task.occupied;
    actor.traffic -= task.traffic;
    const bool sends = walk_->op(at).sends();
    if (task.kind == Kind::collective || (task.kind == Kind::message && sends)) actor.out[task.level]--;
    if (task.kind == Kind::collective || (task.kind == Kind::message && !sends)) actor.in[task.level]--;
  }
  if (!task.of_step_before) {
    for (const StreamCursor at : task.at) finish(at, task.begin);
    return;
  }
  for (size_t i = 0; i < task.at.size(); ++i) {
    const int actor = task.at[i].actor;
    actors_[actor].before[task.ops[i]] = now_;
    if (keep_spans_) spans_[actor].push_back({task.ops[i], 0, task.begin, now_, true});
  }
  begin_left_over();
  take_up();
}

void Clock::finish(StreamCursor at, double began) {
  const OpRef ref = walk_->ref(at);
  if (keep_spans_) spans_[at.actor].push_back({ref, ready_time(at), began, now_});
  Actor& actor = actors_[at.actor];
  actor.ends[at.stream][ref.index] = now_;
  if (ref.index < actor.ended[at.stream]) --left_;
  walk_->finish(at);
}

void Clock::begin(Task task, Members members, double seconds) {
  if (seconds <= 0) {
    for (const StreamCursor at : members) instant_.push_back({at, now_});
    return;
  }
  for (const StreamCursor at : members)
    if (const OpRef ref = walk_->ref(at); !task.of_step_before && ref.index >= actors_[at.actor].ended[at.stream])
      task.ops.push_back(ref);
  task.begin = task.since = now_;
  task.left = seconds;
  task.rate = 0;  // set by settle()
  if (step_s_ >= 0) task.left_at_end = seconds;
  const int id = tasks_.size();
  tasks_.push_back(std::move(task));
  for (const StreamCursor at : members) join_task(id, at);
}

void Clock::run(StreamCursor at) {
  const Members alone(&at, 1);
  if (put_off(alone)) return;
  const Op& op = walk_->op(at);
  if (op.communicates() && !op.offers()) return collective(alone);
  Task task;
  if (op.def->op_class == OpClass::transfer) {
    task.kind = Kind::copy;
    return begin(std::move(task), alone,
                 static_cast<double>(program(at).tensors[op.reads[0]].bytes()) / kHostBytesPerSecond);
  }
  if (op.offers()) return begin(std::move(task), alone, 0);
  Usage& usage = usage_[at.actor];
  const ComputeCost& cost = actors_[at.actor].costs.of(op, [&] {
    return ComputeCost{op_time(device(at), program(at), op), &usage.op_seconds[op.def->name]};
  });
  const OpTime& time = cost.time;
  task.bound = time.bound;
  usage.flops += time.flops;
  *cost.sum += time.seconds;
  if (time.seconds <= 0) return begin(std::move(task), alone, 0);
  const double slowness = slowness_.empty() ? 1 : slowness_[at.actor];
  const double seconds = slowness * time.seconds / speed_of(cluster_, places_[colours_.first[at.actor]]);
  begin(std::move(task), alone, seconds + wake_time(at));
}

void Clock::meet(const std::vector<StreamCursor>& members) {
  if (!put_off(members)) collective(members);
}

void Clock::collective(Members members) {
  const StreamCursor first = members.front();
  const Op& op = walk_->op(first);
  const int rank = colours_.first[first.actor];
  const Program& mine = program(first);
  const auto [shape, fresh] = shapes_.try_emplace({first.actor, op.axis});
  if (fresh) shape->second = group_shape(mine.mesh, cluster_, places_, op.axis, rank);
  const GroupShape& group = shape->second;
  const double full = full_bytes(mine, op), sent = wire_bytes(mine, op);
  const double across = group.nodes > 1 ? static_cast<double>(group.nodes) / group.ranks : 0;
  double last = -1;
  int late = first.actor;
  for (const StreamCursor at : members) {
    usage_[at.actor].sent_bytes[group.level] += group.nodes > 1 ? sent * across : sent;
    if (group.nodes > 1) usage_[at.actor].sent_bytes[0] += sent * (1 - across);
    if (const double ready = ready_time(at); ready > last) last = ready, late = at.actor;
  }
  for (const StreamCursor at : members)
    if (at.actor != late) usage_[at.actor].waited_for[late] += now_ - ready_time(at);
  // All ranks skip an exchange of rows that none has.
  const double routed = op.attrs.number("routed", 1);
  double seconds = group.ranks < 2 || routed == 0
                       ? 0
                       : collective_seconds(cluster_, op.def->coll.value_or(CollKind::barrier), group, full * routed);
  for (const StreamCursor at : members) usage_[at.actor].op_seconds[op.def->name] += seconds;
  double wake = 0;
  for (const StreamCursor at : members) wake = std::max(wake, wake_time(at));
  if (seconds > 0) seconds += wake;
  Task task;
  task.kind = Kind::collective;
  task.level = group.level;
  task.occupied = occupied_multiprocessors(cluster_, group);
  if (task.occupied > 0 && seconds > 0) task.traffic = std::llround(kMemoryPerSent * sent / seconds);
  begin(std::move(task), members, seconds);
}

void Clock::send(StreamCursor at) {
  const Op& op = walk_->op(at);
  const int rank = colours_.first[at.actor], peer = peer_rank(program(at).mesh, op, rank);
  const int level = level_between(cluster_, places_[rank].node, places_[peer].node);
  const double bytes = static_cast<double>(program(at).tensors[op.reads[0]].bytes());
  const double bandwidth =
      std::min(network_share(cluster_, places_, rank, level), network_share(cluster_, places_, peer, level));
  usage_[at.actor].sent_bytes[level] += bytes;
  messages_[walk_->channel(at)].push_back(tasks_.size());
  Task task;
  task.kind = Kind::message;
  task.level = level;
  const double seconds = std::max(1e-9, message_seconds(cluster_, level, bandwidth, bytes));
  task.occupied = link_at(cluster_, level).channels;
  if (task.occupied > 0) task.traffic = std::llround(kMemoryPerSent * bytes / seconds);
  begin(std::move(task), Members(&at, 1), seconds);
}

void Clock::receive(StreamCursor at) {
  std::deque<int>& sent = messages_[walk_->channel(at)];
  PRUN_CHECK(!sent.empty(), "a message arrives that was never sent");
  const int id = sent.front();
  sent.pop_front();
  const int sender = tasks_[id].at.front().actor;
  if (sender != at.actor && tasks_[id].begin >= now_) usage_[at.actor].waited_for[sender] += now_ - ready_time(at);
  if (tasks_[id].ended)
    instant_.push_back({at, now_});
  else
    join_task(id, at);
}

// Concurrent threads share the rank's cores equally.
double Clock::share_of_cores(StreamCursor at) const {
  const Actor& actor = actors_[at.actor];
  int transfers = 0;
  for (int level = 0; level < kLevels; ++level) transfers += std::max(actor.out[level], actor.in[level]);
  return 1.0 / std::max(1, actor.computing + transfers);
}

// Returns how much slower a compute op is because of its rank's transfers, which take multiprocessors and memory
// bandwidth from it.
double Clock::slowdown_of(const Task& task) const {
  const Actor& actor = actors_[task.at.front().actor];
  const DeviceModel& model = device(task.at.front());
  double slowdown = 1;
  for (int level = 0; level < kLevels; ++level)
    if (actor.out[level] + actor.in[level] > 0 && link_at(cluster_, level).channels == 0)
      slowdown = std::max(slowdown, level == 0 ? model.bus_slowdown : model.network_slowdown);
  double taken = 0;
  if (task.bound == Bound::compute) taken = static_cast<double>(actor.occupied) / model.multiprocessors;
  if (task.bound == Bound::memory)
    taken = static_cast<double>(actor.traffic) / (model.memory_efficiency * model.memory_bandwidth);
  return std::max(slowdown, 1 / (1 - std::min(taken, kMostTaken)));
}

double Clock::rate_of(const Task& task) const {
  if (task.kind == Kind::copy) return 1;
  if (task.kind == Kind::compute) {
    if (device(task.at.front()).shared_cores) return share_of_cores(task.at.front());
    return 1 / (slowdown_of(task) * actors_[task.at.front().actor].computing);
  }
  int sharing = 1;
  double cores = 1;
  for (const StreamCursor at : task.at) {
    const Actor& actor = actors_[at.actor];
    const bool sends = walk_->op(at).sends();
    if (task.kind == Kind::collective || sends) sharing = std::max(sharing, actor.out[task.level]);
    if (task.kind == Kind::collective || !sends) sharing = std::max(sharing, actor.in[task.level]);
    if (device(at).shared_cores) cores = std::min(cores, share_of_cores(at));
  }
  return std::min(1.0 / sharing, cores);
}

// Updates the rates and ends of tasks, after all events of this instant.
void Clock::settle() {
  settling_.clear();
  for (const int id : touched_) {
    actors_[id].touched = false;
    settling_.insert(settling_.end(), actors_[id].running.begin(), actors_[id].running.end());
  }
  touched_.clear();
  std::sort(settling_.begin(), settling_.end());
  settling_.erase(std::unique(settling_.begin(), settling_.end()), settling_.end());
  for (const int id : settling_) {
    Task& task = tasks_[id];
    const double rate = rate_of(task);
    if (rate == task.rate) continue;
    task.left -= (now_ - task.since) * task.rate;
    task.since = now_;
    task.rate = rate;
    task.end = now_ + std::max(0.0, task.left) / rate;
    events_.push({task.end, id, ++task.version});
  }
}

double Clock::run() {
  while (true) {
    walk_->run();
    while (!instant_.empty()) {
      const auto ended = std::exchange(instant_, {});
      for (const auto& [at, began] : ended) finish(at, began);
      walk_->run();
    }
    settle();
    if (left_ == 0 && step_s_ < 0) end_step();
    while (!events_.empty() && tasks_[events_.top().task].version != events_.top().version) events_.pop();
    if (events_.empty()) break;
    now_ = events_.top().end;
    while (!events_.empty() && events_.top().end == now_) {
      const Event event = events_.top();
      events_.pop();
      if (tasks_[event.task].version == event.version && !tasks_[event.task].ended) leave(event.task);
    }
  }
  PRUN_CHECK(walk_->ended(), "a verified program does not end under the virtual clock");
  return step_s_;
}

}  // namespace prun::simulate
