// Node 0 waits in the rendezvous until all nodes have joined, or as many as it may run with.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "launch/absent_nodes.h"
#include "launch/launcher_process.h"
#include "launch/reception.h"

namespace prun {
namespace {

void wait_for_nodes(Reception& reception, const LaunchOptions& options, LaunchObserver& observer) {
  const Clock::time_point deadline = after(Clock::now(), options.join_timeout_s);
  const Clock::time_point patience = after(Clock::now(), options.patience_s);
  Clock::time_point next_report = after(Clock::now(), options.join_report_s);
  const std::string hint = why_nodes_may_be_absent(options);
  const auto who = [&] {
    return fmt::format("{}/{} nodes joined at {}", reception.joined(), options.nnodes, options.rendezvous);
  };
  while (reception.joined() < options.nnodes) {
    require_launcher();
    Clock::time_point now = Clock::now();
    const bool enough = options.min_ranks > 0 && reception.ranks() >= options.min_ranks;
    if (enough && now >= std::min(patience, deadline)) break;
    if (now >= deadline)
      throw Error(Exit::join, fmt::format("{} within {}; missing {}{}{}", who(), human_seconds(options.join_timeout_s),
                                          reception.missing(), reception.turned_away(), hint));
    if (now >= next_report) {
      observer.message(
          fmt::format("prun: {}; missing {}{}{}\n", who(), reception.missing(), reception.turned_away(), hint));
      next_report = after(next_report, options.join_report_s);
    }
    reception.serve(std::min({deadline, next_report, enough ? patience : deadline}));
  }
  if (reception.joined() < options.nnodes)
    observer.message(fmt::format("prun: {}: going on without {}\n", who(), reception.missing()));
}

}  // namespace

JoinedNodes gather_nodes(const LaunchOptions& options, const std::string& host, LaunchObserver& observer) {
  auto reception = std::make_shared<Reception>(options, host);
  wait_for_nodes(*reception, options, observer);
  for (size_t member = 0; member + 1 < static_cast<size_t>(options.nnodes); ++member)
    if (const std::string why = reception->unfit(member); !why.empty()) {
      reception->refuse_all(static_cast<int>(Exit::usage), why);
      throw usage_error(why);
    }
  const bool all = reception->joined() == options.nnodes;
  JoinedNodes result = reception->hand_over();
  if (!all) result.late = std::move(reception);
  return result;
}

}  // namespace prun
