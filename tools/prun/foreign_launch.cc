// Only rank 0's process writes metrics, the run's folder and the screen. The other processes print only messages that
// rank 0's process cannot know.
#include "foreign_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "launch/environments.h"
#include "launch/secret.h"

namespace prun {
namespace {

// Returns an address that is equal for all processes of the job, and short because it is part of a socket's name.
std::string meeting_of(const std::string& launcher, const std::string& job) {
  return fmt::format("unix:{}-{}", launcher, hex(sha256(job).substr(0, 8)));
}

}  // namespace

void take_place_of_launcher(JobSpec& job, const std::string& launcher) {
  const auto variable = [](const char* name) -> const char* { return std::getenv(name); };
  const std::optional<ForeignPlace> place = read_environments(variable, launcher);
  LaunchOptions& launch = job.launch;
  const char* rendezvous = std::getenv("PRUN_RENDEZVOUS");
  if (launch.rendezvous.empty() && rendezvous != nullptr) launch.rendezvous = rendezvous;
  if (!place) return;
  launch.nnodes = place->count;
  launch.node_rank = place->index;
  launch.silent = place->index > 0;
  launch.stray_variables = stray_variables(variable, place->launcher);
  launch.host_first_rank = std::max(place->local_index, 0) * launch.nproc;
  launch.host_ranks = std::max(place->local_count, 1) * launch.nproc;
  if (!launch.rendezvous.empty()) return;
  const bool several_hosts = place->local_count > 0 && place->local_count < place->count;
  if (several_hosts && place->rendezvous.empty())
    throw usage_error(fmt::format(
        "{} started {} processes on several hosts and names no host that all reach: --rendezvous HOST:PORT with the "
        "host of process 0, and a secret (--secret-file, PRUN_SECRET)",
        place->launcher, place->count));
  const bool one_host = place->local_count == place->count || place->rendezvous.empty();
  launch.rendezvous = one_host ? meeting_of(place->launcher, place->job) : place->rendezvous;
}

}  // namespace prun
