// A cluster that programs are simulated on: its devices, nodes and networks, in seconds, bytes and FLOP/s.
// It is read from YAML; tools/prun/SIMULATE.md has the fields.
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

// What was measured of a kind of op: seconds = launch + flops / rate + bytes / bandwidth, both by the op's bytes.
struct OpRates {
  double launch_s = 0;
  Curve rate, bandwidth;  // without points: its part does not count
  bool operator==(const OpRates&) const = default;
};

struct DeviceModel {
  std::string name;
  std::array<double, 8> peak = {};  // dense FLOP/s, by Dtype; 0: of the next wider one that is given
  double sustained = 1;             // the part of the peak that large products reach: the one calibrated scalar
  double half_k = 0;                // K0: products over K reach K / (K + K0) of that
  int multiprocessors = 1;
  double memory_bytes = 0;
  double memory_bandwidth = 0;     // bytes/s
  double memory_efficiency = 0.8;  // of it, what streaming ops reach
  double flash = 0;                // part of the peak of fused attention; 0: scores go through memory
  double launch_s = 0;             // of one op
  double bus_slowdown = 1.15;      // of compute beside a transfer over the node's bus
  double network_slowdown = 1.02;  // of compute beside one over the network
  double optimizer_bytes = 50;     // traffic of an update, per parameter
  double loss_bytes = 0;           // traffic of a cross entropy and its gradient, per logit; 0: what the ops here have
  bool fused = false;              // kernels do what prun has ops of its own for (op_cost.cc), as large frameworks' do
  double speed = 1;                // a slow device: below 1
  bool shared_cores = false;       // transfers run on the cores that compute, half of the time each
  double wake_s = 0;               // until a stream goes on that waited for another
  std::map<std::pair<std::string, Dtype>, OpRates> ops;  // measured; others follow the fields above
  double jitter = 0;  // standard deviation of the logarithm of its seconds, from step to step
  bool operator==(const DeviceModel&) const = default;
};

// What was measured of a collective, in place of its link's own figures.
struct CollectiveRates {
  double step_s = 0;
  Curve bandwidth;
  bool operator==(const CollectiveRates&) const = default;
};

// What connects the ranks of a group: the node's bus, or a level of the network.
struct LinkModel {
  std::string name;      // "bus", "network", "spine"
  double bandwidth = 0;  // bytes/s: of the bus per device, of a network per NIC
  double step_s = 0;     // latency of one step of a ring
  double tree_step_s = 0;
  double message_s = 0;  // latency of a message of a pair
  double message_efficiency = 0.95;
  int nodes = 0;                                    // a network's level: so many nodes are inside it; 0: all
  std::map<CollKind, CollectiveRates> collectives;  // measured
  std::map<CollKind, std::map<std::string, CollectiveRates>> algorithms;  // of the core's, by name
};

struct NodeModel {
  std::string host;   // what doctor and launchers call it; may be empty
  std::string place;  // of a listed one: "cluster.yaml:12:5"
  int devices = 1;
  int nics = 1;
  DeviceModel device;
  std::vector<std::pair<int, double>> slow;  // device of this node, its speed
  double bus_speed = 1, network_speed = 1;   // degraded links: below 1
};

struct Cluster {
  std::string path, name;
  DeviceModel device;
  NodeModel node;                // what `nodes` repeats
  std::vector<NodeModel> nodes;  // as many as are counted; empty: as many as ranks ask for
  LinkModel bus;
  std::vector<LinkModel> network;               // from the innermost level
  std::map<std::string, LinkModel> transports;  // that could be the bus, by name
  double collective_s = 0;                      // latency of any collective
  double tree_bandwidth = 0.83;                 // what trees reach of a ring's

  const NodeModel& node_at(int index) const { return nodes.empty() ? node : nodes[index]; }
};

// Whether it has GPUs (several multiprocessors), which run a step as one graph: nothing goes on over its end.
bool joins_steps(const Cluster& cluster);

// Peak FLOP/s in that dtype.
double peak_of(const DeviceModel& device, Dtype dtype);

// Where ranks sit: in order, node after node, a device each.
struct RankPlace {
  int node = 0, device = 0;
};
// Throws usage_error, with the numbers, when there are fewer devices than ranks.
std::vector<RankPlace> place_ranks(const Cluster& cluster, int ranks);
double speed_of(const Cluster& cluster, RankPlace place);
// The link between two nodes: level 0 is the bus, 1 the innermost network.
int level_between(const Cluster& cluster, int first_node, int last_node);
const LinkModel& link_at(const Cluster& cluster, int level);

// Throws usage_error "FILE:LINE:COLUMN: ..": unknown keys with the likely one, wrong types and units, missing fields,
// files that include each other.
Cluster read_cluster(const std::string& path);

// One node. `comment`: lines that say where the figures come from; they get their "# ".
std::string cluster_text(const Cluster& cluster, const std::string& comment);

// Numbers with units, as cluster files have them: "312 TFLOP/s", "24 GB/s", "100 Gbit/s", "80 GiB", "4 us".
enum class Unit : uint8_t { none, seconds, bytes, bandwidth, flops };

// In seconds, bytes, bytes/s or FLOP/s. Throws usage_error without a place: wrong or missing units, NaN, infinity,
// negative numbers.
double read_quantity(const std::string& text, Unit unit);

}  // namespace prun::simulate
