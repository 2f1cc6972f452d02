#include "watch/who_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/text.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "ir/ops.h"

namespace prun {
namespace {

enum class Side { collective, send, receive, offer };

Side side_of(const Op& op) {
  if (op.offers()) return Side::offer;
  if (op.sends()) return Side::send;
  return op.receives() ? Side::receive : Side::collective;
}

// Returns the side whose arrival an op waits for.
Side counterpart(const Op& op) {
  const Side side = side_of(op);
  if (side == Side::receive) return Side::send;
  if (side == Side::send) return op.one_sided() ? Side::offer : Side::receive;
  return side;
}

// The rendezvous of ops of one group, lane and side: the k-th op of a member matches the k-th of the others.
struct Meeting {
  std::vector<int> members;
  std::string axis;
  int lane = 0;
  Side side = Side::collective;

  bool has(const Program& program, const Op& op, int rank) const {
    if (!op.communicates() || op.axis != axis || op.lane != lane || side_of(op) != side) return false;
    return members_of(program.mesh, op, rank) == members;
  }
};

std::optional<OpRef> find_op(const Program& program, const Body& body, int rank, const Meeting& meeting, int ordinal) {
  for (StreamId s : body.streams.ids())
    for (int i = 0; i < std::ssize(body.streams[s].ops); ++i)
      if (meeting.has(program, body.streams[s].ops[static_cast<size_t>(i)], rank) && ordinal-- == 0) return OpRef{s, i};
  return std::nullopt;
}

int ordinal_of(const Program& program, const Body& body, int rank, const Meeting& meeting, OpRef at) {
  int ordinal = 0;
  const std::vector<Op>& ops = body.streams[at.stream].ops;
  for (StreamId s : body.streams.ids()) {  // a lane belongs to one stream, so earlier streams have none
    if (s == at.stream) break;
    for (const Op& op : body.streams[s].ops) ordinal += meeting.has(program, op, rank) ? 1 : 0;
  }
  for (int i = 0; i < at.index; ++i) ordinal += meeting.has(program, ops[static_cast<size_t>(i)], rank) ? 1 : 0;
  return ordinal;
}

// Orders a rank's phases: init, then each step followed by the phases due after it.
std::tuple<int64_t, uint32_t> moment_of(const FlightRank& rank) {
  const int64_t step = rank.streams.empty() ? 0 : rank.streams[0].step;
  if (rank.body == static_cast<uint32_t>(kInitBody.index())) return {-2, 0};
  if (rank.body == static_cast<uint32_t>(kStepBody.index())) return {2 * step, 0};
  return {2 * step - 1, rank.body};
}

const char* host_work(const Op& op) {
  if (op.is(ops::next_batch)) return "reading data";
  if (op.is(ops::load_state)) return "reading a checkpoint";
  if (op.is(ops::save_state) || op.is(ops::await_checkpoint)) return "writing a checkpoint";
  return "computing";
}

}  // namespace

const Body& WhoWaits::body_of(const FlightRank& rank) const {
  const Program& program = job_.program(rank.rank);
  return program.bodies[static_cast<int>(std::min<size_t>(rank.body, program.bodies.size() - 1))];
}

// Returns the op that a stream is in, or the op of another stream that it waits for.
std::optional<OpRef> WhoWaits::stream_at(const FlightRank& rank, StreamId stream, unsigned seen) const {
  const Body& body = body_of(rank);
  const size_t s = static_cast<size_t>(stream.index());
  if (s >= rank.streams.size() || s >= body.streams.size()) return std::nullopt;
  const FlightStream& at = rank.streams[s];
  const std::vector<Op>& ops = body.streams[stream].ops;
  if (at.running == 2 || at.op >= ops.size()) return std::nullopt;
  const OpRef here{stream, static_cast<int>(at.op)};
  if (at.running != 0) return here;
  for (const Edge& edge : ops[at.op].waits) {
    const size_t source = static_cast<size_t>(edge.stream.index());
    if (source >= rank.streams.size() || (seen >> source & 1u) != 0) continue;
    const FlightStream& other = rank.streams[source];
    const int64_t count = std::ssize(body.streams[edge.stream].ops);
    const int64_t done = other.run * count + (other.running == 2 ? count : other.op);
    if (done > (static_cast<int64_t>(at.run) - edge.back) * count + edge.index) continue;
    if (const auto deeper = stream_at(rank, edge.stream, seen | 1u << s)) return deeper;
  }
  return here;
}

Activity WhoWaits::of(int number) const {
  const FlightRank* found = flight_.of(number);
  if (found == nullptr) return {.rank = number};
  const FlightRank& rank = *found;
  Activity activity{.rank = number, .doing = Doing::working, .since_ns = rank.stopped_ns};
  if (rank.phase == RunPhase::running) {
    std::optional<OpRef> at = stream_at(rank, 0, 0);
    for (int s = 1; !at && s < std::ssize(rank.streams); ++s) at = stream_at(rank, s, 0);
    if (at) {
      const FlightStream& stream = rank.streams[static_cast<size_t>(at->stream.index())];
      activity.at = *at;
      activity.op = &body_of(rank).streams[at->stream].ops[static_cast<size_t>(at->index)];
      activity.since_ns = stream.since_ns;
      activity.replayed = stream.running == 3;
      if (activity.op->communicates() && stream.running == 1) {
        activity.doing = Doing::waiting;
        activity.missing = missing_of(rank, *at);
      }
    }
  }
  if (rank.phase == RunPhase::joining) activity.doing = Doing::joining;
  if (rank.phase == RunPhase::finished) activity.doing = Doing::finished;
  if (rank.alive_ns != 0 && flight_.seconds_since(rank.alive_ns) > kSilentSeconds) {
    activity.doing = Doing::silent;
    activity.since_ns = rank.alive_ns;
  }
  if (rank.stopped()) {
    activity.doing = Doing::stopped;
    activity.since_ns = rank.stopped_ns;
  }
  if (rank.process == 'X' && rank.phase != RunPhase::finished) activity.doing = Doing::ended;
  return activity;
}

bool WhoWaits::has_come(const FlightRank& member, const FlightRank& waits, OpRef at) const {
  if (member.phase != RunPhase::running) return member.phase == RunPhase::finished;
  // Within steps each stream is compared, because a gather may be carried over the end of a step.
  const uint32_t step = static_cast<uint32_t>(kStepBody.index());
  const auto theirs = moment_of(member), ours = moment_of(waits);
  if (theirs != ours && !(member.body == step && waits.body == step)) return theirs > ours;
  const Program& program = job_.program(waits.rank);
  const Body& body = body_of(waits);
  const Op& op = body.streams[at.stream].ops[static_cast<size_t>(at.index)];
  Meeting meeting{members_of(program.mesh, op, waits.rank), op.axis, op.lane, side_of(op)};
  const int ordinal = ordinal_of(program, body, waits.rank, meeting, at);
  meeting.side = counterpart(op);
  const auto there = find_op(job_.program(member.rank), body_of(member), member.rank, meeting, ordinal);
  if (!there || there->stream.index() >= std::ssize(member.streams)) return true;  // another program: unknown
  const FlightStream& stream = member.streams[static_cast<size_t>(there->stream.index())];
  const uint32_t run = waits.streams[static_cast<size_t>(at.stream.index())].run;
  if (stream.run != run) return stream.run > run;
  if (stream.running == 2 || stream.running == 3) return true;
  const uint32_t index = static_cast<uint32_t>(there->index);
  return stream.op > index || (stream.op == index && stream.running != 0);
}

std::vector<int> WhoWaits::missing_of(const FlightRank& rank, OpRef at) const {
  const Op& op = body_of(rank).streams[at.stream].ops[static_cast<size_t>(at.index)];
  std::vector<int> missing;
  if (op.offers()) return missing;
  for (const int member : members_of(job_.program(rank.rank).mesh, op, rank.rank)) {
    const FlightRank* other = flight_.of(member);
    if (member != rank.rank && other != nullptr && !has_come(*other, rank, at)) missing.push_back(member);
  }
  return missing;
}

// Returns the awaited rank that explains most; -1: none.
int WhoWaits::next(const Activity& waiter) const {
  const FlightRank& here = *flight_.of(waiter.rank);
  std::vector<int> others = waiter.missing;
  const bool all_came = others.empty();
  if (all_came) others = members_of(job_.program(here.rank).mesh, *waiter.op, here.rank);
  for (const Doing wanted :
       {Doing::ended, Doing::stopped, Doing::silent, Doing::joining, Doing::working, Doing::waiting}) {
    // All members are in the op, so only a process that does not run explains the wait.
    if (all_came && wanted == Doing::joining) return -1;
    for (const int other : others)
      if (other != here.rank && of(other).doing == wanted) return other;
  }
  return -1;
}

// A checkpoint is complete only when every rank has written its part, so a rank that awaits it may wait for another
// rank's disk. Returns the rank that has been writing longest; -1: it is the waiting rank itself.
int WhoWaits::slow_writer(const Activity& awaits) const {
  if (awaits.doing != Doing::working || awaits.op == nullptr || !awaits.op->is(ops::await_checkpoint)) return -1;
  const FlightRank* longest = nullptr;
  for (const FlightRank& rank : flight_.ranks)
    if (rank.rank != 0 && rank.saving != 0 && (longest == nullptr || rank.saving_ns < longest->saving_ns))
      longest = &rank;  // rank 0 commits, and waits for all others
  return longest == nullptr || longest->rank == awaits.rank ? -1 : longest->rank;
}

std::string WhoWaits::op_text(int number, OpRef at) const {
  const FlightRank& rank = *flight_.of(number);
  const Body& body = body_of(rank);
  const std::vector<Op>& ops = body.streams[at.stream].ops;
  const Op& op = ops[static_cast<size_t>(at.index)];
  if (!op.communicates()) return op_words(op);
  int64_t before = 0, all = 0;
  for (int i = 0; i < std::ssize(ops); ++i) {
    const Op& other = ops[static_cast<size_t>(i)];
    if (other.def != op.def || other.axis != op.axis || other.lane != op.lane) continue;
    ++all;
    before += i < at.index ? 1 : 0;
  }
  const int64_t run = rank.streams[static_cast<size_t>(at.stream.index())].run;
  std::string text = fmt::format("{} {} of ", op.def->name, run * all + before + 1);
  text += op.axis == kWorld ? "all ranks" : fmt::format("axis {}", op.axis);
  if (!op.unit.empty()) text += fmt::format(" ({})", op.unit);
  return op.site.known() ? fmt::format("{}, {}", text, op.site.text()) : text;
}

std::string WhoWaits::words(const Activity& activity) const {
  const FlightRank* rank = flight_.of(activity.rank);
  if (rank == nullptr) return "nothing is known of it";
  const std::string time = human_seconds(flight_.seconds_since(activity.since_ns));
  const std::string in = activity.op == nullptr ? "" : fmt::format(", in {}", op_text(activity.rank, activity.at));
  switch (activity.doing) {
    case Doing::ended:
      return fmt::format("its process has ended{}", in);
    case Doing::finished:
      return "it has done all its steps";
    case Doing::stopped:
      return fmt::format("stopped for {} (state {}){}", time, rank->process, in);
    case Doing::silent:
      return fmt::format("silent for {}: its process does not run{}", time, in);
    case Doing::joining:
      return rank->doing.empty() ? "joining" : "joining: " + rank->doing;
    case Doing::waiting: {
      std::vector<std::string> names;
      for (const int other : activity.missing) names.push_back(std::to_string(other));
      const std::string whom = names.empty() ? "transferring" : fmt::format("waiting for rank {}", join(names, ", "));
      return fmt::format("{}{} for {}", whom, in, time);
    }
    case Doing::working:
      if (activity.op == nullptr) return "between ops";
      if (activity.replayed)
        return fmt::format("in a replayed graph from {} on for {}", op_text(rank->rank, activity.at), time);
      return fmt::format("{} ({}) for {}", host_work(*activity.op), op_text(rank->rank, activity.at), time);
    default:
      return "nothing is known of it";
  }
}

std::optional<Holdup> WhoWaits::holdup(bool past) const {
  std::optional<Activity> waiter;
  for (const FlightRank& rank : flight_.ranks) {
    const Activity activity = of(rank.rank);
    if (activity.doing == Doing::waiting && (!waiter || activity.since_ns < waiter->since_ns)) waiter = activity;
  }
  if (!waiter) return std::nullopt;
  Holdup holdup;
  std::vector<int> seen;
  const char* is = past ? "was" : "is";
  for (;;) {
    seen.push_back(waiter->rank);
    const std::string op = op_text(waiter->rank, waiter->at);
    const int other = next(*waiter);
    if (other < 0) {
      const size_t count = members_of(job_.program(waiter->rank).mesh, *waiter->op, waiter->rank).size();
      holdup.sentence = fmt::format(
          "all {} ranks entered {}, and nothing {} moving: the transport or the network between them", count, op, is);
      holdup.op = op;
      return holdup;
    }
    holdup.chain.push_back(fmt::format("rank {} {} for rank {} in {}, for {}", waiter->rank, past ? "waited" : "waits",
                                       other, op, human_seconds(flight_.seconds_since(waiter->since_ns))));
    const Activity found = of(other);
    if (const int writer = slow_writer(found); writer >= 0) {
      const FlightRank& disk = *flight_.of(writer);
      holdup.chain.push_back(
          fmt::format("rank {} {} for the checkpoint after step {}", other, past ? "waited" : "waits", disk.saving));
      holdup.rank = writer;
      holdup.sentence = fmt::format("rank {} {} writing its part of the checkpoint after step {} for {}", writer,
                                    past ? "had been" : "has been", disk.saving,
                                    human_seconds(flight_.seconds_since(disk.saving_ns)));
      return holdup;
    }
    const bool came = std::find(waiter->missing.begin(), waiter->missing.end(), other) == waiter->missing.end();
    holdup.rank = other;
    holdup.op = found.op == nullptr ? "" : op_text(other, found.at);
    if (std::find(seen.begin(), seen.end(), other) != seen.end()) {
      holdup.sentence =
          fmt::format("rank {} and those it waits for {} for each other", other, past ? "waited" : "wait");
      return holdup;
    }
    if (found.doing != Doing::waiting) {
      const bool verb = found.doing == Doing::ended || found.doing == Doing::finished;
      const std::string what = fmt::format("{}{}", verb ? "" : fmt::format("it {} ", is), words(found));
      holdup.sentence =
          came ? fmt::format("rank {} entered {}, and {}", other, op, what)
               : fmt::format("rank {} {} {}; {}", other, past ? "never entered" : "has not entered", op, what);
      return holdup;
    }
    waiter = found;
  }
}

}  // namespace prun
