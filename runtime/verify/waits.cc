// No wait cycle exists within a rank: following the missing edges from a blocked stream would lead back to it.
#include <fmt/format.h>

#include "verify/view.h"

namespace prun::verify {

void waits_have_no_cycle(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    if (body.ordered()) continue;
    WalkPolicy nothing;
    Walk walk(*body.body, nothing);
    walk.run();
    const std::vector<StreamCursor> circle = walk.circle();
    std::string text;
    for (const StreamCursor at : circle) {
      const Edge edge = *walk.missing_edge(at);
      text += fmt::format("\n  {} waits for {}", body.describe(walk.ref(at)), body.describe({edge.stream, edge.index}));
    }
    findings.add("wait cycle", fmt::format("{}these wait for each other{}", body.where(), text),
                 walk.op(circle.front()).site);
  }
}

}  // namespace prun::verify
