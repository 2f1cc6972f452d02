#include "draw/program_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace prun::draw {
namespace {

using Json = nlohmann::ordered_json;

ViewedProgram program_of(const Json& json) {
  ViewedProgram program;
  std::map<std::string, int> ids;
  std::vector<int> buffer_of_tensor;
  for (const Json& tensor : json.at("tensors")) {
    const auto [at, added] =
        ids.emplace(tensor.at("buffer").get<std::string>() + "@" + tensor.at("space").get<std::string>(),
                    static_cast<int>(program.buffers.size()));
    if (added)
      program.buffers.push_back(
          {tensor.at("role"), tensor.at("buffer_bytes"), tensor.at("persistent"), tensor.at("space") == "host"});
    buffer_of_tensor.push_back(at->second);
  }
  for (const Json& body : json.at("bodies")) {
    if (body.at("name") != "step") continue;
    for (const Json& stream : body.at("streams")) {
      ViewedStream& viewed = program.streams.emplace_back();
      viewed.name = stream.at("name");
      for (const Json& op : stream.at("ops")) {
        ViewedOp& one = viewed.ops.emplace_back();
        one.name = op.at("op");
        if (op.contains("unit")) one.name += " " + op["unit"].get<std::string>();
        for (const char* side : {"reads", "writes"})
          for (const Json& tensor : op.at(side)) one.buffers.push_back(buffer_of_tensor.at(tensor.get<size_t>()));
        for (const Json& tensor : op.at("writes")) one.written.push_back(buffer_of_tensor.at(tensor.get<size_t>()));
      }
    }
  }
  return program;
}

}  // namespace

ProgramView view_of(const Json& json, const std::string& source) {
  try {
    ProgramView view{json.at("plan"), json.at("mesh"), json.at("class_of_rank"), {}};
    for (const Json& program : json.at("classes")) view.classes.push_back(program_of(program));
    for (const int which : view.class_of_rank) (void)view.classes.at(static_cast<size_t>(which));
    return view;
  } catch (const std::exception& error) {
    const std::string why = error.what();
    throw usage_error(fmt::format("{} is no program of `prun dump --json`: {}", source, why.substr(why.find(' ') + 1)));
  }
}

std::string_view role_of_result(const Program& program, const Op& op) {
  const std::vector<TensorId>& tensors = op.writes.empty() ? op.reads : op.writes;
  return tensors.empty() ? "" : role_name(program.buffers[program.tensors[tensors.front()].buffer].role);
}

void match(Timeline& timeline, const ProgramView& view) {
  constexpr const char* kSettings = "; give it the --set of the run";
  const auto other = [&](const std::string& why) {
    return usage_error(fmt::format("{} is of another program than {}: {}", timeline.source, view.plan, why));
  };
  for (Lane& lane : timeline.lanes) {
    if (lane.rank >= static_cast<int>(view.class_of_rank.size()))
      throw other(fmt::format("it has a rank {}, the program {} (--nproc)", lane.rank,
                              counted(std::ssize(view.class_of_rank), "rank")));
    lane.rank_class = view.class_of_rank[static_cast<size_t>(lane.rank)];
    const std::vector<ViewedStream>& streams = view.classes[static_cast<size_t>(lane.rank_class)].streams;
    if (lane.stream >= static_cast<int>(streams.size()) || streams[static_cast<size_t>(lane.stream)].name != lane.name)
      throw other(fmt::format("the program has no stream '{}' as number {} of rank {}{}", lane.name, lane.stream,
                              lane.rank, kSettings));
  }
  for (const Box& box : timeline.boxes) {
    const Lane& lane = timeline.lanes[static_cast<size_t>(box.lane)];
    const ViewedStream& stream =
        view.classes[static_cast<size_t>(lane.rank_class)].streams[static_cast<size_t>(lane.stream)];
    const std::string& name = timeline.texts[box.name];
    if (box.op >= static_cast<int>(stream.ops.size()))
      throw other(fmt::format("op {} of stream {} on rank {} is '{}', the program has only {}{}", box.op, lane.name,
                              lane.rank, name, stream.ops.size(), kSettings));
    if (const std::string& there = stream.ops[static_cast<size_t>(box.op)].name; there != name)
      throw other(fmt::format("op {} of stream {} on rank {} is '{}', in the program '{}'{}", box.op, lane.name,
                              lane.rank, name, there, kSettings));
  }
}

namespace {

struct Change {
  int64_t time;
  size_t role;
  int64_t bytes;
};

MemoryStrip strip_of(int rank, const ViewedProgram& program, std::vector<Change> changes,
                     const std::vector<std::string>& roles) {
  MemoryStrip strip{rank, roles, {}, std::vector<std::vector<int64_t>>(roles.size()), 0};
  std::vector<int64_t> now(roles.size(), 0);
  const auto role_index = [&](const std::string& role) {
    return static_cast<size_t>(std::find(roles.begin(), roles.end(), role) - roles.begin());
  };
  for (const ViewedBuffer& buffer : program.buffers)
    if (buffer.persistent && !buffer.gathered_ahead() && !buffer.on_host) now[role_index(buffer.role)] += buffer.bytes;
  // What ends at a moment is free for what begins then.
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

// By rank and step: its begin and its end.
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

std::vector<MemoryStrip> memory_of(const Timeline& timeline, const ProgramView& view) {
  std::vector<std::string> roles;
  for (int r = 0; r < kRoles; ++r) {
    const std::string role(role_name(static_cast<Role>(r)));
    const auto has = [&](const ViewedProgram& program) {
      return std::any_of(program.buffers.begin(), program.buffers.end(),
                         [&](const ViewedBuffer& buffer) { return !buffer.on_host && buffer.role == role; });
    };
    if (std::any_of(view.classes.begin(), view.classes.end(), has)) roles.push_back(role);
  }
  // Rank, step, buffer, and whether it is written for the next step: from the begin of the first access to the end of
  // the last.
  std::map<std::tuple<int, int, int, bool>, std::pair<int64_t, int64_t>> lives;
  std::map<int, const ViewedProgram*> programs;
  const std::map<std::pair<int, int>, std::pair<int64_t, int64_t>> steps = steps_of(timeline);
  for (const Box& box : timeline.boxes) {
    const Lane& lane = timeline.lanes[static_cast<size_t>(box.lane)];
    const ViewedProgram& program = view.classes[static_cast<size_t>(lane.rank_class)];
    programs[lane.rank] = &program;
    const ViewedOp& op = program.streams[static_cast<size_t>(lane.stream)].ops[static_cast<size_t>(box.op)];
    for (const int buffer : op.buffers) {
      const ViewedBuffer& about = program.buffers[static_cast<size_t>(buffer)];
      if ((about.persistent && !about.gathered_ahead()) || about.on_host) continue;
      const bool ahead = about.gathered_ahead(), writes = std::ranges::find(op.written, buffer) != op.written.end();
      const auto [begin, end] = steps.at({lane.rank, box.step});
      const std::pair<int64_t, int64_t> span{ahead && !writes ? begin : box.begin, ahead && writes ? end : box.end};
      const auto [life, added] = lives.emplace(std::tuple(lane.rank, box.step, buffer, ahead && writes), span);
      if (added) continue;
      life->second.first = std::min(life->second.first, span.first);
      life->second.second = std::max(life->second.second, span.second);
    }
  }
  std::map<int, std::vector<Change>> changes;
  for (const auto& [key, life] : lives) {
    const auto& [rank, step, id, ahead] = key;
    const ViewedBuffer& buffer = programs[rank]->buffers[static_cast<size_t>(id)];
    const size_t role = static_cast<size_t>(std::find(roles.begin(), roles.end(), buffer.role) - roles.begin());
    changes[rank].push_back({life.first, role, buffer.bytes});
    changes[rank].push_back({life.second, role, -buffer.bytes});
  }
  std::vector<MemoryStrip> strips;
  strips.reserve(programs.size());
  for (const auto& [rank, program] : programs) strips.push_back(strip_of(rank, *program, changes[rank], roles));
  return strips;
}

}  // namespace prun::draw
