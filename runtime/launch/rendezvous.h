// Rendezvous of the launchers of several nodes: node 0 listens (meeting.h says where), the others connect.
//
// Both sides prove that they know the secret before either trusts a length or a name from the other. What follows is
// authenticated frame by frame, or encrypted (LaunchOptions::encrypt).
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

inline constexpr auto kHandshake = std::chrono::seconds(2);  // how long one may take

class Reception;

struct JoinedNodes {
  Topology topology;
  std::string secret;                    // that let them in
  std::vector<Channel> members;          // [i] leads to node i + 1
  std::vector<std::string> inventories;  // by node; node 0's is its own affair
  std::shared_ptr<Reception> late;       // for nodes that have stayed away; null: there are none
};

// Node 0: waits for all other nodes. Throws Error: usage (address without secret), transport (port in use), join
// (a node is missing after join_timeout_s, named). A node with other settings than node 0 is a usage error on all.
JoinedNodes gather_nodes(const LaunchOptions& options, const std::string& host, LaunchObserver& observer);

struct JoinedHead {
  Channel node0;
  std::string secret;
};

// Another node: connects, tries again until join_timeout_s. Throws Error(join) or Error(usage).
JoinedHead join_head(const LaunchOptions& options, const std::string& host, LaunchObserver& observer);

// The job as node 0 sends it to the others.
struct JobOffer {
  int error_code = 0;  // not 0: there is no job, and `error` says why
  std::string error;
  std::vector<NodePlace> nodes;
  std::string job, job_id, salt;  // the job's secret is an HMAC of the salt, and never sent
  std::string note;               // as given to Launch::run
  bool begins_again = false;      // as in LaunchOptions
  bool mirror_all = false;        // LaunchOptions::mirror_all
  bool join_again = false;        // there is none yet: node 0 is about to begin one with this node
  bool over = false;              // there is none any more: it has ended without this node, with `error_code`

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(error_code, error, nodes, job, job_id, salt, note, begins_again, mirror_all, join_again, over);
  }
};

}  // namespace prun
