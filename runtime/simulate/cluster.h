// A cluster for simulation: its devices, nodes and networks, in seconds, bytes and FLOP/s. Read from YAML;
// tools/prun/SIMULATE.md documents the fields.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/curve.h"
#include "ir/coll_kind.h"
#include "ir/types.h"

namespace prun::simulate {

// Measured rates of an op kind: seconds = launch + flops / rate + bytes / bandwidth; both rates are functions of the
// op's bytes.
struct OpRates {
  double launch_s = 0;
  Curve rate, bandwidth;  // without points: its term is omitted
  bool operator==(const OpRates&) const = default;
};

struct DeviceModel {
  std::string name;
  std::array<double, 8> peak = {};  // dense FLOP/s, by Dtype; 0 = that of the next wider dtype given
  double sustained = 1;             // fraction of the peak that large GEMMs reach: the one calibrated scalar
  double half_k = 0;                // K0: GEMMs over K reach K / (K + K0) of that
  int multiprocessors = 1;
  double memory_bytes = 0;
  double memory_bandwidth = 0;     // bytes/s
  double memory_efficiency = 0.8;  // fraction of it that streaming ops reach
  double flash = 0;                // fraction of the peak for fused attention; 0 = scores are stored in memory
  double launch_s = 0;             // per op
  double bus_slowdown = 1.15;      // slowdown of compute during a transfer over a bus without `channels`
  double network_slowdown = 1.02;  // slowdown of compute during a transfer over a network without `channels`
  double optimizer_bytes = 50;     // memory traffic of an update, per parameter
  double loss_bytes = 0;      // memory traffic of a cross entropy and its gradient, per logit; 0 = that of prun's ops
  bool fused = false;         // kernels fuse ops that are separate in prun (op_cost.cc), as in large frameworks
  double speed = 1;           // below 1 = a slow device
  bool shared_cores = false;  // transfers run on the compute cores, half of the time each
  double wake_s = 0;          // latency of resuming a stream that waited for another
  std::map<std::pair<std::string, Dtype>, OpRates> ops;  // measured; others follow the fields above
  double jitter = 0;                                     // standard deviation of log(seconds) between steps
  bool operator==(const DeviceModel&) const = default;
};

// Measured rates of a collective; replace the link's figures.
struct CollectiveRates {
  double step_s = 0;
  Curve bandwidth;
  bool operator==(const CollectiveRates&) const = default;
};

// The link between the ranks of a group: the node's bus, or a level of the network.
struct LinkModel {
  std::string name;      // "bus", "network", "spine"
  double bandwidth = 0;  // bytes/s: of the bus per device, of a network per NIC
  double step_s = 0;     // latency of one step of a ring
  double tree_step_s = 0;
  double message_s = 0;  // latency of a point-to-point message
  double message_efficiency = 0.95;
  int channels = 0;  // multiprocessors that a collective occupies: of a network per NIC; 0 = the device's slowdowns
  int nodes = 0;     // network level: number of nodes inside it; 0 = all
  std::map<CollKind, CollectiveRates> collectives;                        // measured
  std::map<CollKind, std::map<std::string, CollectiveRates>> algorithms;  // rates of the core's algorithms, by name
};

struct NodeModel {
  std::string host;   // name in doctor and launchers; may be empty
  std::string place;  // location of a listed node: "cluster.yaml:12:5"
  int devices = 1;
  int nics = 1;
  DeviceModel device;
  std::vector<std::pair<int, double>> slow;  // device of this node, its speed
  double bus_speed = 1, network_speed = 1;   // below 1 = degraded links
};

struct Cluster {
  std::string path, name;
  DeviceModel device;
  NodeModel node;                // the node that a number of `nodes` repeats
  std::vector<NodeModel> nodes;  // all counted or listed nodes; empty = as many as the ranks need
  LinkModel bus;
  std::vector<LinkModel> network;               // from the innermost level
  std::map<std::string, LinkModel> transports;  // candidates for the bus, by name
  double collective_s = 0;                      // latency of any collective
  double tree_bandwidth = 0.83;                 // bandwidth of trees relative to a ring

  const NodeModel& node_at(int index) const { return nodes.empty() ? node : nodes[index]; }
};

// Returns whether the cluster has GPUs (several multiprocessors), which run a step as one graph, so no op is carried
// over its end.
bool joins_steps(const Cluster& cluster);

// Returns the peak FLOP/s in that dtype.
double peak_of(const DeviceModel& device, Dtype dtype);

// The location of a rank: ranks fill nodes in order, one device each.
struct RankPlace {
  int node = 0, device = 0;
};
// Throws usage_error with the numbers if there are fewer devices than ranks.
std::vector<RankPlace> place_ranks(const Cluster& cluster, int ranks);
double speed_of(const Cluster& cluster, RankPlace place);
// Returns the level of the link between two nodes: 0 = the bus, 1 = the innermost network.
int level_between(const Cluster& cluster, int first_node, int last_node);
const LinkModel& link_at(const Cluster& cluster, int level);

// Throws usage_error "FILE:LINE:COLUMN: ..": unknown keys with a suggestion, wrong types and units, missing fields,
// files that include each other.
Cluster read_cluster(const std::string& path);
// Reads the nodes: the figures of devices and links may be missing. Throws the errors of read_cluster.
Cluster read_hosts(const std::string& path);

// Returns the file of a cluster of one node. `comment`: lines about the origin of the figures; each gets a "# ".
std::string cluster_text(const Cluster& cluster, const std::string& comment);

// Units of numbers in cluster files: "312 TFLOP/s", "24 GB/s", "100 Gbit/s", "80 GiB", "4 us".
enum class Unit : uint8_t { none, seconds, bytes, bandwidth, flops };

// Returns seconds, FLOP/s, bytes or bytes/s. Throws usage_error without a location: wrong or missing units, NaN,
// infinity, negative numbers.
double read_quantity(const std::string& text, Unit unit);

}  // namespace prun::simulate
