// The list of invariants, in the order in which they are reported.
//
// Surprising fact: verification stops at a program that is malformed or has a wait cycle, because the later rules index
// by id and use the happens-before order, and would report consequences instead of the cause.
#include "verify/verify.h"

#include <fmt/format.h>

#include "verify/view.h"

namespace prun {
namespace {

using Rule = void (*)(const verify::JobView&, verify::Findings&);

// clang-format off
constexpr Rule kRules[] = {
    verify::collectives_fit_their_group,
    verify::collectives_of_a_lane_are_ordered,
    verify::collectives_match_across_ranks,
    verify::messages_match,
    verify::offered_places_are_left_alone,
    verify::conflicting_accesses_are_ordered,
    verify::reads_follow_writes,
    verify::spaces_are_kept,
    verify::buffers_share_bytes_only_in_turn,
    verify::streams_meet_at_the_end,
    verify::shapes_fit,
    verify::factors_are_right,
    verify::shares_fit,
    verify::nothing_is_lost,
    verify::memory_suffices,
};
// clang-format on

bool everything_meets(const verify::Findings& findings) {
  return !findings.has("collectives differ") && !findings.has("unordered collectives") &&
         !findings.has("messages differ") && !findings.has("unordered messages") && !findings.has("offers differ");
}

verify::JobView view_of(const Job& job, BodyId body) {
  verify::JobView view;
  view.job = &job;
  view.bodies.reserve(2 * job.classes.size());
  for (int id = 0; id < std::ssize(job.classes); id++) {
    view.bodies.emplace_back(job, id, kInitBody);
    view.bodies.emplace_back(job, id, body);
    if (body != kStepBody) view.steps.emplace_back(job, id, kStepBody);
  }
  return view;
}

// Verifies init and one body that runs repeatedly: the step, or a between-steps body treated like a step.
void verify_bodies(const Job& job, BodyId body, int64_t memory_limit, int local_ranks, verify::Findings& findings) {
  verify::JobView view = view_of(job, body);
  if (verify::has_model(job))
    for (std::vector<verify::BodyView>* bodies : {&view.bodies, &view.steps})
      for (verify::BodyView& each : *bodies) each.find_kinds(view.kinds);
  view.memory_limit = memory_limit;
  view.local_ranks = local_ranks;
  verify::waits_have_no_cycle(view, findings);
  if (!findings.empty()) return;
  // After this check, findings about the listed periods also hold for the periods that repeat them.
  verify::repeats_recur(view, findings);
  if (!findings.empty()) return;
  for (const Rule rule : kRules) rule(view, findings);
  // The abstract execution takes one legal order of many and needs matching messages.
  if (findings.empty()) verify::values_are_right(view, findings);
  // Ranks that issue different collectives also deadlock; in that case only the cause is reported.
  if (everything_meets(findings)) verify::ranks_do_not_wait_in_a_circle(view, findings);
}

}  // namespace

std::vector<Finding> verify_job(const Job& job, int64_t memory_limit, int local_ranks) {
  verify::Findings findings;
  verify::program_is_well_formed(job, findings);
  if (!findings.empty()) return findings.take();
  verify::calendars_agree(job, findings);
  if (!findings.empty()) return findings.take();
  verify_bodies(job, kStepBody, memory_limit, local_ranks, findings);
  verify::bodies_between_steps_change_nothing(job, findings);
  verify::drifting_weights_meet(job, findings);
  std::vector<Finding> found = findings.take();
  const auto& bodies = job.classes.front().bodies;
  for (BodyId body = kStepBody + 1; body < bodies.next() && found.empty(); ++body) {
    verify_bodies(job, body, memory_limit, local_ranks, findings);
    found = findings.take();
    for (Finding& finding : found) finding.message = fmt::format("in the {}: {}", bodies[body].name, finding.message);
  }
  return found;
}

std::string_view transport_class_name(TransportClass kind) {
  static constexpr std::string_view kNames[] = {"rendezvous", "eager", "queue_ordered"};
  return kNames[static_cast<size_t>(kind)];
}

bool carries(TransportClass kind, const Job& job, int credits) {
  const int on_the_way = kind == TransportClass::eager ? credits : 0;
  for (BodyId body = kStepBody; body < job.classes.front().bodies.next(); ++body) {
    const verify::JobView view = view_of(job, body);
    if (kind == TransportClass::queue_ordered && !verify::queues_agree(view)) return false;
    if (!verify::everything_ends(view, on_the_way)) return false;
  }
  return true;
}

void require_valid(const Job& job, int64_t memory_limit, int local_ranks) {
  const std::vector<Finding> findings = verify_job(job, memory_limit, local_ranks);
  if (findings.empty()) return;
  const Finding& first = findings.front();
  std::string message = first.rule + ": " + first.message;
  if (findings.size() > 1) {
    message += fmt::format("\n  and {} more finding{} (prun check lists them)", findings.size() - 1,
                           findings.size() == 2 ? "" : "s");
  }
  throw plan_error(std::move(message), first.site.known() ? std::optional<Site>(first.site) : std::nullopt);
}

}  // namespace prun
