// Rendezvous of the launchers of several nodes: node 0 listens at the address of meeting.h, the others connect.
//
// Both sides prove that they have the secret before either trusts a length or a name from the other. Subsequent frames
// are authenticated one by one, or encrypted (LaunchOptions::encrypt).
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

inline constexpr auto kHandshake = std::chrono::seconds(2);  // time limit of one handshake

class Reception;

struct JoinedNodes {
  Topology topology;
  std::string secret;                    // with which they authenticated
  std::vector<Channel> members;          // [i] leads to node i + 1
  std::vector<std::string> inventories;  // by node; node 0's comes from its own options
  std::shared_ptr<Reception> late;       // admits missing nodes; null: all have joined
};

// Node 0: waits for all other nodes. Throws Error: usage (address without secret, or a node whose settings differ from
// node 0's: on all nodes), transport (port in use), join (names the node that is missing after join_timeout_s).
JoinedNodes gather_nodes(const LaunchOptions& options, const std::string& host, LaunchObserver& observer);

struct JoinedHead {
  Channel node0;
  std::string secret;
};

// Other nodes: connects, with retries until join_timeout_s. Throws Error(join) or Error(usage).
JoinedHead join_head(const LaunchOptions& options, const std::string& host, LaunchObserver& observer);

// The job as node 0 sends it to the other nodes.
struct JobOffer {
  int error_code = 0;  // nonzero: there is no job, for the reason in `error`
  std::string error;
  std::vector<NodePlace> nodes;
  std::string job, job_id, salt;  // the job's secret is HMAC(secret, salt), and never sent
  std::string note;               // as passed to Launch::run
  bool begins_again = false;      // as in LaunchOptions
  bool mirror_all = false;        // LaunchOptions::mirror_all
  bool join_again = false;        // node 0 is about to begin a job with this node
  bool over = false;              // the job has ended without this node, with `error_code`

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(error_code, error, nodes, job, job_id, salt, note, begins_again, mirror_all, join_again, over);
  }
};

}  // namespace prun
