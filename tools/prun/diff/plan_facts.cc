#include "diff/plan_facts.h"

#include <fmt/format.h>

#include "base/text.h"
#include "draw/program_view.h"
#include "draw/timeline.h"
#include "draw/timeline_sources.h"
#include "ir/op_cost.h"

namespace prun {
namespace {

std::string label_of(const Op& op) {
  std::string label = draw::op_name(op);
  return op.microbatch > 0 ? fmt::format("{} {}", label, op.microbatch) : label;
}

void add_order(PlanFacts& facts, const Body& step) {
  for (const Stream& stream : step.streams) {
    StreamFacts& of_stream = facts.streams[stream.name];
    for (const Op& op : stream.ops) {
      std::vector<std::string> waits;
      for (const Edge& edge : op.waits)
        if (edge.back == 0) waits.push_back(label_of(step.streams[edge.stream].ops[static_cast<size_t>(edge.index)]));
      of_stream.ops.push_back(label_of(op));
      of_stream.waits.push_back(join(waits, ", "));
    }
  }
}

}  // namespace

PlanFacts facts_of(const Job& job, const std::string& name) {
  PlanFacts facts;
  facts.name = name;
  facts.ranks = static_cast<int>(job.class_of_rank.size());
  facts.classes = static_cast<int>(job.classes.size());
  facts.mesh = job.classes.front().mesh.text();
  std::vector<int> ranks_of(job.classes.size(), 0);
  for (const int which : job.class_of_rank) ranks_of[static_cast<size_t>(which)]++;
  for (size_t c = 0; c < job.classes.size(); ++c) {
    const Program& program = job.classes[c];
    const double part = static_cast<double>(ranks_of[c]) / facts.ranks;
    for (const Stream& stream : program.step().streams)
      for (const Op& op : stream.ops) {
        if (!op.communicates()) continue;
        const double bytes = wire_bytes(program, op) * part;
        if (bytes <= 0) continue;
        facts.sent[fmt::format("{} over {}", op.def->name, op.axis)] += bytes;
        facts.sent_by_line[fmt::format("{}, {}", op.site.text(), op.def->name)] += bytes;
      }
    facts.ops += program.step().op_count() * ranks_of[c];
    if (program.arena_bytes <= facts.arena_bytes) continue;
    facts.arena_bytes = program.arena_bytes;
    facts.roles.clear();
    for (int r = 0; r < kRoles; ++r)
      if (program.role_bytes[r] > 0) facts.roles[std::string(role_name(static_cast<Role>(r)))] = program.role_bytes[r];
  }
  add_order(facts, job.program(0).step());
  const draw::Timeline timeline = draw::ideal_timeline(job);
  const draw::Figures figures = draw::figures_of(timeline);
  facts.step = static_cast<double>(figures.step_ns) / timeline.unit_ns;
  facts.busy = figures.busy;
  facts.exposed = figures.exposed;
  return facts;
}

}  // namespace prun
