// Local SGD: ranks train independently for several steps. Their weights may differ within a step along the axes over
// which a between-steps body averages them, and that body must average all of them.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/ops.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

constexpr const char* kDriftRule = "drifting weights";

// Calls what(op) for every op between steps that averages weights.
template <class What>
void each_average(const Program& program, const What& what) {
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id)
    for (const Stream& stream : program.bodies[id].streams)
      for (const Op& op : stream.ops)
        if (averages_weights(program, op)) what(op);
}

using Range = std::pair<int64_t, int64_t>;

// Returns the first part of a range that no other range covers; an empty range if all of it is covered.
Range uncovered(Range wanted, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  int64_t next = wanted.first;
  for (const auto& [begin, end] : ranges)
    if (begin <= next) next = std::max(next, end);
  return next >= wanted.second ? Range{0, 0} : Range{next, wanted.second};
}

void check_program(const Program& program, const std::string& axis, Findings& findings) {
  Table<BufferId, std::vector<Range>> averaged(program.buffers.size());
  const auto range = [&](TensorId id) {
    const Tensor& tensor = program.tensors[id];
    return Range{tensor.byte_offset, tensor.byte_offset + tensor.bytes()};
  };
  Site site;
  each_average(program, [&](const Op& op) {
    if (op.axis != axis) return;
    site = op.site;
    if (op.attrs.text("op", "sum") != "avg")
      findings.add(kDriftRule,
                   fmt::format("weights that drift apart over {} are added up between steps, not averaged", axis),
                   op.site);
    averaged[program.tensors[op.writes[0]].buffer].push_back(range(op.writes[0]));
  });
  // Weights are the parameters that init creates. The optimizer's own copies, which init reads when a run resumes,
  // remain local to each rank.
  for (const Stream& stream : program.init().streams)
    for (const Op& op : stream.ops) {
      if (!makes_state(op)) continue;
      const Tensor& weights = program.tensors[op.writes[0]];
      if (program.buffers[weights.buffer].role != Role::param) continue;
      const auto [begin, end] = uncovered(range(op.writes[0]), averaged[weights.buffer]);
      if (begin < end)
        findings.add(
            kDriftRule,
            fmt::format("'{}' drifts apart over {}: what others average between steps ({}) leaves out its bytes {}..{}",
                        weights.name, axis, site.text(), begin, end),
            op.site);
    }
}

}  // namespace

std::vector<std::string> drift_axes(const Program& program) {
  std::set<std::string> axes;
  each_average(program, [&](const Op& op) { axes.insert(op.axis); });
  return {axes.begin(), axes.end()};
}

void drifting_weights_meet(const Job& job, Findings& findings) {
  std::set<std::string> axes;
  for (const Program& program : job.classes)
    for (const std::string& axis : drift_axes(program)) axes.insert(axis);
  for (const Program& program : job.classes)
    for (const std::string& axis : axes) check_program(program, axis, findings);
}

}  // namespace prun::verify
