// Jobs of ranks that are connected over the transport under test.
#include "tests/conformance/suite.h"

#include <chrono>
#include <numeric>

namespace prun::testing {

Suite& suite() {
  static Suite instance;
  return instance;
}

WorldOptions Suite::options(const LocalBootstrap& bootstrap) const {
  WorldOptions o;
  o.rank = o.local_rank = bootstrap.rank();
  o.ranks = o.local_ranks = bootstrap.ranks();
  o.transport = transport;
  o.transport_options = transport_options;
  o.plugin_dirs = plugin_dirs;
  o.job_id = job_id;
  o.job_secret.assign(32, 's');
  o.deadline_s = 20;
  return o;
}

std::vector<RankReport> run_connected(const ConnectedJob& job, const std::function<std::string(Rank&)>& body) {
  return run_ranks(job.local, [&](LocalBootstrap& bootstrap) {
    WorldOptions options = suite().options(bootstrap);
    options.deadline_s = job.deadline_s;
    options.algorithm = job.algorithm;
    std::unique_ptr<World> world = World::open(options, bootstrap);
    char* arena = static_cast<char*>(world->allocate(kArenaBytes));
    world->connect();
    Rank rank{bootstrap, *world, arena, bootstrap.rank(), bootstrap.ranks()};
    std::string text = body(rank);
    // No rank leaves while others communicate, because a closed connection looks like a dead rank.
    if (text.empty()) bootstrap.barrier();
    return text;
  });
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<int> all_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace prun::testing
