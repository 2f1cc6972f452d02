// Nobody waits in a circle within a rank: following what blocks from a blocked stream comes back to it.
#include <fmt/format.h>

#include <algorithm>

#include "verify/view.h"

namespace prun::verify {

std::optional<Edge> unsatisfied(const Op& op, const std::vector<int>& done) {
  for (const Edge& edge : op.waits) {
    if (edge.back == 0 && done[edge.stream] <= edge.index) return edge;
  }
  return std::nullopt;
}

void waits_have_no_cycle(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    if (body.ordered()) continue;
    std::vector<int> done;
    for (const Stream& stream : body.body->streams) done.push_back(static_cast<int>(stream.ops.size()));
    for (const OpRef stuck : body.order.stuck()) done[stuck.stream] = stuck.index;
    // Every blocked stream waits for a blocked one, so following them comes back.
    std::vector<OpRef> path = {body.order.stuck().front()};
    auto closes = path.end();
    while (true) {
      const Edge edge = *unsatisfied(body.op(path.back()), done);
      const OpRef next{edge.stream, done[edge.stream]};
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

}  // namespace prun::verify
