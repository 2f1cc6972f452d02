#include "draw/program_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace prun::draw {
std::string_view role_of_result(const Program& program, const Op& op) {
  const std::vector<TensorId>& tensors = op.writes.empty() ? op.reads : op.writes;
  return tensors.empty() ? "" : role_name(program.buffers[program.tensors[tensors.front()].buffer].role);
}

std::string op_name(const Op& op) {
  return op.unit.empty() ? std::string(op.def->name) : fmt::format("{} {}", op.def->name, op.unit);
}

void match(Timeline& timeline, const Job& job) {
  constexpr const char* kSettings = "; give it the --set of the run";
  const auto other = [&](const std::string& why) {
    return usage_error(
        fmt::format("{} is of another program than {}: {}", timeline.source, job.classes.front().name, why));
  };
  for (Lane& lane : timeline.lanes) {
    if (lane.rank >= static_cast<int>(job.class_of_rank.size()))
      throw other(fmt::format("it has a rank {}, the program {} (--nproc)", lane.rank,
                              counted(std::ssize(job.class_of_rank), "rank")));
    lane.rank_class = job.class_of_rank[static_cast<size_t>(lane.rank)];
    const Table<StreamId, Stream>& streams = job.program(lane.rank).step().streams;
    if (lane.stream >= static_cast<int>(streams.size()) || streams[lane.stream].name != lane.name)
      throw other(fmt::format("the program has no stream '{}' as number {} of rank {}{}", lane.name, lane.stream,
                              lane.rank, kSettings));
  }
  for (const Box& box : timeline.boxes) {
    const Lane& lane = timeline.lanes[static_cast<size_t>(box.lane)];
    const std::vector<Op>& ops = job.program(lane.rank).step().streams[lane.stream].ops;
    const std::string& name = timeline.texts[box.name];
    if (box.op >= static_cast<int>(ops.size()))
      throw other(fmt::format("op {} of stream {} on rank {} is '{}', the program has only {}{}", box.op, lane.name,
                              lane.rank, name, ops.size(), kSettings));
    if (const std::string there = op_name(ops[static_cast<size_t>(box.op)]); there != name)
      throw other(fmt::format("op {} of stream {} on rank {} is '{}', in the program '{}'{}", box.op, lane.name,
                              lane.rank, name, there, kSettings));
  }
}

namespace {

// Returns whether a buffer holds parameters gathered at the end of a step for the next; other buffers share its memory
// in between.
bool is_gathered_ahead(const Buffer& buffer) { return buffer.persistent && buffer.role == Role::gathered; }
bool is_kept(const Buffer& buffer) { return buffer.persistent && !is_gathered_ahead(buffer); }
bool is_on_host(const Buffer& buffer) { return buffer.space == Space::host; }

struct Change {
  int64_t time;
  size_t role;
  int64_t bytes;
};

size_t index_of(const std::vector<std::string>& roles, Role role) {
  return static_cast<size_t>(std::find(roles.begin(), roles.end(), role_name(role)) - roles.begin());
}

MemoryStrip strip_of(int rank, const Program& program, std::vector<Change> changes,
                     const std::vector<std::string>& roles) {
  MemoryStrip strip{rank, roles, {}, std::vector<std::vector<int64_t>>(roles.size()), 0};
  std::vector<int64_t> now(roles.size(), 0);
  for (const Buffer& buffer : program.buffers)
    if (is_kept(buffer) && !is_on_host(buffer)) now[index_of(roles, buffer.role)] += buffer.bytes;
  // Memory freed at a moment is available to buffers that begin at this moment.
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return std::tie(a.time, a.bytes) < std::tie(b.time, b.bytes); });
  const auto put = [&](int64_t time) {
    int64_t sum = 0;
    for (const int64_t bytes : now) sum += bytes;
    strip.peak = std::max(strip.peak, sum);
    if (strip.times.empty() || strip.times.back() != time) {
      strip.times.push_back(time);
      for (size_t r = 0; r < roles.size(); ++r) strip.bytes[r].push_back(now[r]);
    } else {
      for (size_t r = 0; r < roles.size(); ++r) strip.bytes[r].back() = now[r];
    }
  };
  put(0);
  for (size_t i = 0; i < changes.size(); ++i) {
    now[changes[i].role] += changes[i].bytes;
    if (i + 1 == changes.size() || changes[i + 1].time != changes[i].time) put(changes[i].time);
  }
  return strip;
}

// Returns the begin and the end of each step by rank and step.
std::map<std::pair<int, int>, std::pair<int64_t, int64_t>> steps_of(const Timeline& timeline) {
  std::map<std::pair<int, int>, std::pair<int64_t, int64_t>> steps;
  for (const Box& box : timeline.boxes) {
    const std::pair key(timeline.lanes[static_cast<size_t>(box.lane)].rank, static_cast<int>(box.step));
    const auto [step, added] = steps.emplace(key, std::pair(box.begin, box.end));
    if (added) continue;
    step->second.first = std::min(step->second.first, box.begin);
    step->second.second = std::max(step->second.second, box.end);
  }
  return steps;
}

}  // namespace

std::vector<MemoryStrip> memory_of(const Timeline& timeline, const Job& job) {
  std::vector<std::string> roles;
  for (int r = 0; r < kRoles; ++r) {
    const auto has = [&](const Program& program) {
      return std::ranges::any_of(program.buffers, [&](const Buffer& buffer) {
        return !is_on_host(buffer) && buffer.role == static_cast<Role>(r);
      });
    };
    if (std::ranges::any_of(job.classes, has)) roles.emplace_back(role_name(static_cast<Role>(r)));
  }
  // Lifetimes, from the begin of the first access to the end of the last, by rank, step, buffer, and whether it is
  // written for the next step.
  std::map<std::tuple<int, int, BufferId, bool>, std::pair<int64_t, int64_t>> lives;
  std::map<int, std::vector<Change>> changes;
  const std::map<std::pair<int, int>, std::pair<int64_t, int64_t>> steps = steps_of(timeline);
  for (const Box& box : timeline.boxes) {
    const Lane& lane = timeline.lanes[static_cast<size_t>(box.lane)];
    const Program& program = job.program(lane.rank);
    const Op& op = program.step().streams[lane.stream].ops[static_cast<size_t>(box.op)];
    changes.try_emplace(lane.rank);
    const auto access = [&](TensorId tensor) {
      const BufferId id = program.tensors[tensor].buffer;
      const Buffer& buffer = program.buffers[id];
      if (is_kept(buffer) || is_on_host(buffer)) return;
      const bool ahead = is_gathered_ahead(buffer), writes = std::ranges::any_of(op.writes, [&](TensorId written) {
                                                      return program.tensors[written].buffer == id;
                                                    });
      const auto [begin, end] = steps.at({lane.rank, box.step});
      const std::pair<int64_t, int64_t> span{ahead && !writes ? begin : box.begin, ahead && writes ? end : box.end};
      const auto [life, added] = lives.emplace(std::tuple(lane.rank, box.step, id, ahead && writes), span);
      if (added) return;
      life->second.first = std::min(life->second.first, span.first);
      life->second.second = std::max(life->second.second, span.second);
    };
    for (const std::vector<TensorId>* tensors : {&op.reads, &op.writes})
      for (const TensorId tensor : *tensors) access(tensor);
  }
  for (const auto& [key, life] : lives) {
    const auto& [rank, step, id, ahead] = key;
    const Buffer& buffer = job.program(rank).buffers[id];
    const size_t role = index_of(roles, buffer.role);
    changes[rank].push_back({life.first, role, buffer.bytes});
    changes[rank].push_back({life.second, role, -buffer.bytes});
  }
  std::vector<MemoryStrip> strips;
  strips.reserve(changes.size());
  for (auto& [rank, of_rank] : changes) strips.push_back(strip_of(rank, job.program(rank), std::move(of_rank), roles));
  return strips;
}

}  // namespace prun::draw
