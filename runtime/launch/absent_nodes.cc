#include "launch/absent_nodes.h"

#include <fmt/format.h>

#include <cstdlib>

#include "launch/environments.h"
#include "launch/meeting.h"
#include "launch/tcp.h"

namespace prun {
namespace {

// Debian's /etc/hosts maps the machine's own name to 127.0.1.1.
std::string loopback_name(const LaunchOptions& options) {
  if (options.rendezvous.empty() || on_one_host(options)) return "";
  const HostPort at = parse_host_port(options.rendezvous);
  const bool is_meant = at.host == "localhost" || at.host.find_first_not_of("0123456789.:") == std::string::npos;
  if (is_meant || !why_unresolved(at).empty() || !resolve(options.rendezvous).loopback) return "";
  return fmt::format(
      "; '{}' is a loopback address here (see /etc/hosts), and other hosts cannot reach it: use "
      "--rendezvous ADDRESS:{}",
      at.host, at.port);
}

std::string variables_of_nobody(const LaunchOptions& options) {
  const bool from_environment = options.host_ranks > 0;
  if (!from_environment || std::getenv("TORCHELASTIC_RUN_ID") != nullptr || std::getenv("RANK") == nullptr ||
      std::getenv("WORLD_SIZE") == nullptr)
    return "";
  return fmt::format(
      "; RANK={} and WORLD_SIZE={} in the environment make this process one of several: unset them, or use "
      "--launcher none, if they are left from something else",
      std::getenv("RANK"), std::getenv("WORLD_SIZE"));
}

}  // namespace

std::string why_nodes_may_be_absent(const LaunchOptions& options) {
  return loopback_name(options) + variables_of_nobody(options);
}

}  // namespace prun
