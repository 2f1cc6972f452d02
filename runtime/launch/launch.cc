// From options to an exit code: who takes part, what the job is, then the supervisor.
#include "launch/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "launch/coordination.h"
#include "launch/rendezvous.h"
#include "launch/room.h"
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

RankStart start_of(const JobOffer& offer, const std::string& secret) {
  RankStart start;
  start.job = offer.job;
  start.job_hash = hex(sha256(offer.job));
  start.job_id = offer.job_id;
  start.job_secret = hmac_sha256(secret, offer.salt);
  return start;
}

// Node 0, or the only one.
int lead(const LaunchOptions& options, const std::function<std::string(int ranks)>& make_job,
         const std::function<int(const RankStart&)>& rank_main, LaunchObserver& observer) {
  JoinedNodes joined{{0, {{host_name(), 0, options.nproc}}}, {}};
  if (options.nnodes > 1) joined = gather_nodes(options, host_name(), observer);
  JobOffer offer;
  try {
    offer.job = make_job(joined.topology.ranks());
  } catch (const Error& error) {  // to the caller, but not without telling the nodes that wait for the job
    offer.error_code = static_cast<int>(error.code());
    offer.error = error.what();
    for (Channel& member : joined.members) member.send(FrameKind::job, -1, pack(offer));
    throw;
  }
  offer.nodes = joined.topology.nodes;
  offer.job_id = hex(random_bytes(8));
  offer.salt = random_bytes(32);
  for (Channel& member : joined.members) member.send(FrameKind::job, -1, pack(offer));
  std::unique_ptr<Coordination> head = make_head(joined.topology, std::move(joined.members), options, observer);
  return supervise(options, joined.topology, start_of(offer, options.secret), rank_main, *head, observer);
}

int follow(const LaunchOptions& options, const std::function<int(const RankStart&)>& rank_main,
           LaunchObserver& observer) {
  Fd connection = join_head(options, host_name(), observer);
  Frame frame;
  if (!receive_frame(connection.get(), frame) || frame.kind != FrameKind::job)
    throw Error(Exit::join, fmt::format("node 0 at {} ended before the job began", options.rendezvous));
  JobOffer offer = unpack_offer(frame.payload);
  if (offer.error_code != 0)
    throw Error(static_cast<Exit>(offer.error_code), fmt::format("node 0 has no job: {}", offer.error));
  observer.job_received(offer.job);
  Topology topology{options.node_rank, offer.nodes};
  std::unique_ptr<Coordination> member = make_member(Channel(std::move(connection)), options);
  return supervise(options, topology, start_of(offer, options.secret), rank_main, *member, observer);
}

}  // namespace

void LaunchObserver::message(const std::string& text) { std::fputs(text.c_str(), stderr); }

int launch(const LaunchOptions& options, const std::function<std::string(int ranks)>& make_job,
           const std::function<int(const RankStart&)>& rank_main, LaunchObserver& observer) {
  check_options(options);
  check_room(options.nproc, options.recorder_bytes);
  return options.node_rank == 0 ? lead(options, make_job, rank_main, observer) : follow(options, rank_main, observer);
}

}  // namespace prun
