// The nodes join in the constructor; `run` distributes the job and starts the supervisor.
#include "launch/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "launch/coordination.h"
#include "launch/launcher_process.h"
#include "launch/preflight.h"
#include "launch/reception.h"
#include "launch/rendezvous.h"
#include "launch/secret.h"
#include "launch/supervisor.h"

namespace prun {
namespace {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return *name ? name : "this host";
}

// Blocks until the job arrives; a signal ends this process, because no rank runs yet.
JobOffer receive_job(Channel& node0, const std::string& address, const std::function<void()>& told_late) {
  std::vector<Frame> frames;
  bool open = true;
  while (frames.empty() && open) {
    pollfd readable{node0.fd(), POLLIN, 0};
    poll(&readable, 1, -1);
    open = node0.receive(frames);
    if (std::erase_if(frames, [](const Frame& frame) { return frame.kind == FrameKind::late; }) > 0) told_late();
  }
  if (!node0.trouble().empty())
    throw Error(Exit::corrupt_link, fmt::format("the connection to node 0 ({}): {}", address, node0.trouble()));
  if (frames.empty() || frames.front().kind != FrameKind::job)
    throw Error(Exit::join, fmt::format("node 0 at {} ended before the job began", address));
  return unpack<JobOffer>(frames.front().payload);
}

RankStart start_of(const JobOffer& offer, const std::string& secret) {
  RankStart start;
  start.job = offer.job;
  start.job_hash = hex(sha256(offer.job));
  start.note = offer.note;
  start.job_id = offer.job_id;
  start.job_secret = hmac_sha256(secret, offer.salt);
  return start;
}

}  // namespace

void check_options(const LaunchOptions& options) {
  if (options.nproc < 1) throw usage_error(fmt::format("--nproc must be at least 1, not {}", options.nproc));
  if (options.nnodes < 1) throw usage_error(fmt::format("--nnodes must be at least 1, not {}", options.nnodes));
  if (options.node_rank < 0 || options.node_rank >= options.nnodes)
    throw usage_error(fmt::format("--node-rank {} is not below --nnodes {}", options.node_rank, options.nnodes));
  if (options.nnodes > 1 && options.rendezvous.empty())
    throw usage_error("--nnodes needs --rendezvous HOST:PORT, the address where node 0 listens");
}

void LaunchObserver::message(const std::string& text) { std::fputs(text.c_str(), stderr); }

struct Launch::Nodes {
  JoinedNodes joined;  // on node 0 only
  JoinedHead head;     // on the other nodes only
};

Launch::Launch(const LaunchOptions& options, LaunchObserver& observer)
    : options_(options), observer_(observer), nodes_(std::make_unique<Nodes>()) {
  check_options(options);
  require_launcher();
  check_machine(options.nproc, options.recorder_bytes, options.capture_output);
  if (!gives_job())
    nodes_->head = join_head(options, host_name(), observer);
  else if (options.nnodes > 1)
    nodes_->joined = gather_nodes(options, host_name(), observer);
  else
    nodes_->joined.topology = {0, {{host_name(), 0, options.nproc}}};
}

Launch::~Launch() = default;

bool Launch::gives_job() const { return options_.node_rank == 0; }

int Launch::ranks() const { return nodes_->joined.topology.ranks(); }

const std::vector<std::string>& Launch::inventories() const { return nodes_->joined.inventories; }

void Launch::use_ranks(int most) {
  for (NodePlace& place : nodes_->joined.topology.nodes) {
    place.first_rank = std::min(place.first_rank, most);
    place.ranks = std::min(place.ranks, most - place.first_rank);
  }
}

void Launch::refuse(const Error& error) {
  JobOffer offer;
  offer.error_code = static_cast<int>(error.code());
  offer.error = error.what();
  for (Channel& member : nodes_->joined.members) {
    member.send(FrameKind::job, -1, pack(offer));
    keep_until_exit(std::move(member));
  }
  if (nodes_->joined.late) nodes_->joined.late->close(offer);
}

// Node 0's decision is final on this node, too.
int Launch::end_without_job(const std::string& error, int code, bool over) {
  const bool told = options_.silent;
  if (over && !told)
    observer_.message(fmt::format("prun: node {} was not needed any more: {}\n", options_.node_rank, error));
  if (told) wait_for_end(nodes_->head.node0.fd(), kHeadLeaves);
  if (over || told) return code;
  throw Error(static_cast<Exit>(code), fmt::format("node 0 has no job: {}", error));
}

int Launch::run(const std::string& job, const RankMain& rank_main, const std::string& note) {
  JobOffer offer;
  std::string secret;
  std::unique_ptr<Coordination> coordination;
  if (gives_job()) {
    JoinedNodes& joined = nodes_->joined;
    offer.job = job;
    offer.note = note;
    offer.nodes = joined.topology.nodes;
    offer.job_id = hex(random_bytes(8));
    offer.salt = random_bytes(32);
    offer.begins_again = options_.begins_again;
    offer.mirror_all = options_.mirror_all;
    for (Channel& member : joined.members) member.send(FrameKind::job, -1, pack(offer));
    secret = joined.secret;
    coordination = make_head(std::move(joined), options_, observer_);
  } else {
    const auto receive = [&] {
      return receive_job(nodes_->head.node0, options_.rendezvous, [&] {
        observer_.message(
            fmt::format("prun: the job runs without node {} and takes it in after a commit\n", options_.node_rank));
      });
    };
    for (offer = receive(); offer.join_again; offer = receive())
      nodes_->head = join_head(options_, host_name(), observer_);
    if (offer.error_code != 0 || offer.over) return end_without_job(offer.error, offer.error_code, offer.over);
    secret = nodes_->head.secret;
    observer_.job_received(offer.job);
    coordination = make_member(std::move(nodes_->head.node0), options_, offer.begins_again);
  }
  const Topology topology{options_.node_rank, offer.nodes};
  observer_.placed(topology, offer.mirror_all);
  const int code = supervise(options_, topology, start_of(offer, secret), rank_main, *coordination, observer_);
  begins_again_ = coordination->verdict()->begins_again;
  // A launcher such as mpirun ends all processes when the first of them fails; that must be the one that prints the
  // failure.
  if (options_.silent && code != 0 && !begins_again_) coordination->leave();
  return code;
}

}  // namespace prun
