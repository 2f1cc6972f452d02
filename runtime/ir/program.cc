// Names of roles and phases; the ranks of a communication op; positions of a run.
#include "ir/program.h"

#include <fmt/format.h>

#include <array>

#include "ir/calendar.h"

namespace prun {

std::string_view role_name(Role role) {
  static constexpr std::array<std::string_view, kRoles> kNames = {"param",    "grad",       "optimizer", "gathered",
                                                                  "reduce",   "activation", "data",      "workspace",
                                                                  "snapshot", "cache",      "frozen",    "buffer"};
  return kNames[static_cast<size_t>(role)];
}

double NamedResult::of(const std::vector<double>& results) const {
  const auto sum = [&](const std::vector<Part>& parts) {
    double total = 0;
    for (const Part& part : parts) total += part.factor * results[part.slot];
    return total;
  };
  return sum(terms) / (over.empty() ? 1 : sum(over));
}

std::string_view phase_name(Phase phase) {
  static constexpr std::array<std::string_view, 6> kNames = {"init", "data", "forward", "backward", "step", "program"};
  return kNames[static_cast<size_t>(phase)];
}

std::vector<int> members_of(const Mesh& mesh, const Op& op, int rank) {
  if (!op.point_to_point() && !op.offers()) return mesh.group(op.axis, rank);
  std::vector<int> ring = mesh.group(op.axis, rank);
  int size = std::ssize(ring), peer = static_cast<int>(op.attrs.integer("peer"));
  int other = ring[((mesh.index(op.axis, rank) + peer) % size + size) % size];
  return op.sends() ? std::vector<int>{rank, other} : std::vector<int>{other, rank};
}

std::string moment_text(const Program& program, BodyId body, int64_t step) {
  if (body == kStepBody) return fmt::format("step {}", step + 1);
  const Body& between = program.bodies[body];
  return between.when.every == 0 ? "initial values" : fmt::format("{} after step {}", between.name, step);
}

RunPosition position_after(const Program& program, int64_t step) {
  RunPosition at = program.schedule.begin;
  const int64_t steps = step - at.step;
  at.step = step;
  at.samples += steps * program.step().data.global_batch;
  at.tokens += steps * program.tokens_per_step;
  return at;
}

int64_t Body::op_count() const {
  int64_t n = 0;
  for (const Stream& stream : streams) n += std::ssize(stream.ops);
  return n;
}

}  // namespace prun
