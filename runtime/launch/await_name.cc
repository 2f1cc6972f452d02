#include "launch/await_name.h"

#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <cstdio>

#include "base/text.h"
#include "launch/coordination.h"
#include "launch/launcher_process.h"
#include "launch/meeting.h"
#include "launch/tcp.h"

namespace prun {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(250);

}  // namespace

void await_name(const LaunchOptions& options) {
  if (options.rendezvous.empty() || on_one_host(options)) return;
  const HostPort at = parse_host_port(options.rendezvous);
  const Clock::time_point deadline = after(Clock::now(), options.join_timeout_s);
  Clock::time_point next_report = after(Clock::now(), options.join_report_s);
  for (std::string why = why_unresolved(at); !why.empty(); why = why_unresolved(at)) {
    require_launcher();
    const Clock::time_point now = Clock::now();
    if (now + kAskAgain >= deadline)
      throw Error(Exit::join, fmt::format("--rendezvous: host '{}' has no address within {}: {}", at.host,
                                          human_seconds(options.join_timeout_s), why));
    if (now >= next_report && !options.silent) {
      std::fputs(fmt::format("prun: waiting for the address of '{}' (--rendezvous): {}\n", at.host, why).c_str(),
                 stderr);
      next_report = after(next_report, options.join_report_s);
    }
    poll(nullptr, 0, static_cast<int>(kAskAgain.count()));
  }
}

}  // namespace prun
