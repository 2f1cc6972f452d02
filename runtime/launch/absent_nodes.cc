#include "launch/absent_nodes.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/text.h"
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
  std::vector<std::string> set;
  for (const std::string& name : options.stray_variables)
    if (const char* value = std::getenv(name.c_str())) set.push_back(fmt::format("{}={}", name, value));
  if (set.empty()) return "";
  return fmt::format(
      "; {} in the environment make this process one of several: unset them, or use --launcher none, if they are left "
      "from something else",
      join(set, " and "));
}

}  // namespace

std::string why_nodes_may_be_absent(const LaunchOptions& options) {
  return loopback_name(options) + variables_of_nobody(options);
}

}  // namespace prun
