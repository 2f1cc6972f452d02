// Deadlock detection: all ranks walk without time or data. Usually one actor per class suffices, because ranks of one
// class advance in lockstep if their groups and peers are of the same classes; a class may even send to itself (a ring)
// and then receives its own message.
#include <fmt/format.h>

#include <algorithm>

#include "verify/view.h"

namespace prun::verify {
namespace {

class Credits : public WalkPolicy {
 public:
  explicit Credits(int credits) : credits_(credits) {}
  bool buffers(int under_way) const override { return under_way < credits_; }

 private:
  int credits_;
};

std::vector<const Body*> bodies_of(const JobView& view, bool init) {
  std::vector<const Body*> bodies;
  for (const BodyView& body : view.bodies)
    if (body.is_init == init) bodies.push_back(body.body);
  return bodies;
}

// Starts the cycle at a stream that waits for another rank: that op's line is in the plan, a compute op's may be in a
// model.
std::vector<StreamCursor> circle_across_ranks(const Walk& walk) {
  std::vector<StreamCursor> circle = walk.circle();
  const auto across = [&](StreamCursor at) { return walk.waits_for_others(at); };
  std::rotate(circle.begin(), std::find_if(circle.begin(), circle.end(), across), circle.end());
  return circle;
}

std::string circle_text(const JobView& view, const Walk& walk, const std::vector<StreamCursor>& circle, bool init) {
  std::string text;
  for (size_t i = 0; i < circle.size(); ++i) {
    const StreamCursor at = circle[i], next = circle[(i + 1) % circle.size()];
    const int rank = walk.rank(at);
    const BodyView& body = view.bodies[view.job->class_of_rank[rank] * 2 + (init ? 0 : 1)];
    const Op& op = walk.op(at);
    std::string whom;
    if (!walk.waits_for_others(at)) {
      const Edge edge = *walk.missing_edge(at);
      whom = body.describe({edge.stream, edge.index});
    } else {
      whom = fmt::format("rank {}", op.point_to_point() ? peer_rank(body.program->mesh, op, rank) : walk.rank(next));
    }
    text += fmt::format("\n  rank {}: {} waits for {}", rank, body.describe(walk.ref(at)), whom);
  }
  return text;
}

}  // namespace

bool everything_ends(const JobView& view, int credits) {
  Credits policy(credits);
  for (const bool init : {true, false})
    if (!Walk(*view.job, bodies_of(view, init), Walk::By::class_if_alike, policy, Walk::Repeats::run).run())
      return false;
  return true;
}

void ranks_do_not_wait_in_a_circle(const JobView& view, Findings& findings) {
  // Ranks of one class advance in lockstep, so without a wait cycle within a rank only messages can block across them.
  const bool messages = std::any_of(view.bodies.begin(), view.bodies.end(), sends_messages);
  if (view.job->classes.size() < 2 && !messages) return;
  for (const bool init : {true, false}) {
    Credits rendezvous(0);
    Walk walk(*view.job, bodies_of(view, init), Walk::By::class_if_alike, rendezvous, Walk::Repeats::run);
    if (walk.run()) continue;
    const std::vector<StreamCursor> circle = circle_across_ranks(walk);
    findings.add("wait cycle across ranks", "these wait for each other" + circle_text(view, walk, circle, init),
                 walk.op(circle.front()).site);
  }
}

}  // namespace prun::verify
