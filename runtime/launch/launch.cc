// From options to an exit code: who takes part, what the job is, then the supervisor.
#include "launch/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "launch/coordination.h"
#include "launch/secret.h"
#include "launch/supervisor.h"

namespace prun {
namespace {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return *name ? name : "this host";
}

void check_options(const LaunchOptions& options) {
  if (options.nproc < 1) throw usage_error(fmt::format("--nproc must be at least 1, not {}", options.nproc));
  if (options.nnodes < 1) throw usage_error(fmt::format("--nnodes must be at least 1, not {}", options.nnodes));
  if (options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw usage_error(
        fmt::format("--node-rank must lie between 0 and {}, not {}", options.nnodes - 1, options.node_rank));
}

}  // namespace

void LaunchObserver::message(const std::string& text) { std::fputs(text.c_str(), stderr); }

int launch(const LaunchOptions& options, const std::function<std::string(int ranks)>& make_job,
           const std::function<int(const RankStart&)>& rank_main, LaunchObserver& observer) {
  check_options(options);
  Topology topology{0, {{host_name(), 0, options.nproc}}};
  std::string job = make_job(topology.ranks());
  RankStart start;
  start.job = job;
  start.job_hash = hex(sha256(job));
  start.job_id = hex(random_bytes(8));
  start.job_secret = random_bytes(32);
  std::unique_ptr<Coordination> head = make_head(topology, {}, options, observer);
  return supervise(options, topology, start, rank_main, *head, observer);
}

}  // namespace prun
