#include "job/algorithm_choice.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/collectives/algorithm.h"
#include "job/job_spec.h"

namespace prun {
namespace {

// Returns the collectives of a class of ranks, each once, with the size of its axis.
std::vector<std::pair<CollCall, int>> calls_of(const Program& program) {
  std::vector<std::pair<CollCall, int>> calls;
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops) {
      if (!op.communicates() || op.point_to_point() || op.offers() || !op.def->coll || op.reads.empty()) continue;
      const Tensor& tensor = program.tensors[op.reads[0]];
      const int size = program.mesh.size(op.axis);
      CollCall call;
      call.kind = *op.def->coll;
      call.dtype = tensor.dtype;
      call.redop = parse_redop(op.attrs.text("op", "sum")).value_or(RedOp::sum);
      call.rank_order = program.rank_order;
      call.count = traits(call.kind).whole_input ? tensor.count() / size : tensor.count();
      if (size > 1 && !traits(call.kind).vector) calls.emplace_back(call, size);
    }
  return calls;
}

}  // namespace

std::string settle_algorithms(JobSpec& spec, const Job& job) {
  const CheckpointSettings& from = spec.checkpoint;
  std::string& costs = spec.world.algorithm_costs;
  const std::optional<std::string>& before = from.numerics.algorithms;
  const bool goes_on = from.resumes && before && from.mesh == job.classes.front().mesh.text();
  if (!goes_on || *before == costs) return "";
  costs = *before;
  return fmt::format("prun: {} was computed {}: collectives take the same algorithms, so that sums go on to the bit\n",
                     from.resume,
                     costs.empty() ? "without this machine's calibration" : "by another calibration of collectives");
}

std::string chosen_algorithms(const Job& job, const std::string& costs) {
  std::set<std::string> transports;
  for (const std::string& line : split(costs, '\n')) transports.insert(line.substr(0, line.find(' ')));
  std::vector<std::string> texts;
  for (const std::string& transport : transports) {
    const AlgorithmCosts known(costs, transport);
    std::map<std::string, std::set<std::string>> names;
    for (const Program& program : job.classes)
      for (const auto& [call, size] : calls_of(program))
        if (!compared_algorithms(call.kind).empty())
          names[std::string(traits(call.kind).name)].insert(choose_algorithm(call, size, "", known).name);
    std::vector<std::string> kinds;
    kinds.reserve(names.size());
    for (const auto& [kind, chosen] : names)
      kinds.push_back(fmt::format("{} {}", kind, join({chosen.begin(), chosen.end()}, " and ")));
    if (!kinds.empty()) texts.push_back(fmt::format("{} over {}", join(kinds, ", "), transport));
  }
  return join(texts, "; ");
}

}  // namespace prun
