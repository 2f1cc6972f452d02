// This machine is the host with its name, otherwise the one whose address a socket can be bound to here.
#include "cluster_hosts.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "doctor/check.h"
#include "launch/control.h"
#include "predict/predict.h"
#include "simulate/cluster.h"

namespace prun {
namespace {

constexpr int kRendezvousPort = 29400;

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

bool has_address_here(const std::string& host) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Fd fd(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() >= 0 && bind(fd.get(), each->ai_addr, each->ai_addrlen) == 0) return true;
  }
  return false;
}

std::vector<std::string> hosts_of(const simulate::Cluster& cluster) {
  std::vector<std::string> hosts;
  for (const simulate::NodeModel& node : cluster.nodes) {
    for (size_t i = 0; i < hosts.size(); ++i)
      if (hosts[i] == node.host && !node.host.empty())
        throw usage_error(fmt::format("{}: host '{}' is that of node {}, too", node.place, node.host, i));
    hosts.push_back(node.host);
  }
  bool any = false;
  for (const std::string& host : hosts) any |= !host.empty();
  if (!any)
    throw usage_error(
        fmt::format("{} names no hosts, and --cluster of a run or of prun doctor is the list of them: nodes: [{{ host: "
                    "alpha }}, {{ host: beta }}]",
                    cluster.path));
  for (const simulate::NodeModel& node : cluster.nodes)
    if (node.host.empty()) throw usage_error(fmt::format("{}: this node has no host, and others have", node.place));
  return hosts;
}

int place_of_this_machine(const std::vector<std::string>& hosts, const std::string& path) {
  const std::string here = doctor::host_name();
  std::vector<int> matches;
  for (int i = 0; i < std::ssize(hosts); ++i)
    if (hosts[i] == here) return i;
  for (int i = 0; i < std::ssize(hosts); ++i)
    if (first_label(hosts[i]) == first_label(here) && std::isdigit(static_cast<unsigned char>(hosts[i][0])) == 0)
      matches.push_back(i);
  if (matches.empty())
    for (int i = 0; i < std::ssize(hosts); ++i)
      if (has_address_here(hosts[i])) matches.push_back(i);
  if (matches.size() == 1) return matches[0];
  if (matches.empty())
    throw usage_error(fmt::format("this machine, {}, is not among the hosts of {}{}; name it with --node-rank", here,
                                  path, did_you_mean(here, hosts)));
  std::vector<std::string> names;
  names.reserve(matches.size());
  for (const int i : matches) names.push_back(fmt::format("{} ({})", i, hosts[i]));
  throw usage_error(
      fmt::format("this machine, {}, is several of the hosts of {}: {}; --node-rank says which it is here", here, path,
                  join(names, ", ")));
}

}  // namespace

GivenPlace given_place(const CommandLine& line) {
  return {line.given("--nnodes"), line.given("--node-rank"), line.given("--nproc")};
}

std::vector<std::string> take_place_among_hosts(JobSpec& job, const std::string& name, const GivenPlace& given) {
  const simulate::Cluster cluster = simulate::read_hosts(cluster_path(name, job.lua_dir));
  std::vector<std::string> hosts = hosts_of(cluster);
  LaunchOptions& launch = job.launch;
  const int nodes = static_cast<int>(hosts.size());
  if (given.nnodes && launch.nnodes != nodes)
    throw usage_error(fmt::format("--nnodes is {}, and {} names {}: leave it out", launch.nnodes, cluster.path,
                                  counted(nodes, "host")));
  launch.nnodes = nodes;
  if (given.node_rank && launch.node_rank >= nodes)
    throw usage_error(
        fmt::format("--node-rank {}, and {} names {}, from 0", launch.node_rank, cluster.path, counted(nodes, "host")));
  if (!given.node_rank) launch.node_rank = place_of_this_machine(hosts, cluster.path);
  if (!given.nproc) launch.nproc = cluster.node_at(launch.node_rank).devices;
  if (const char* set = std::getenv("PRUN_RENDEZVOUS"); launch.rendezvous.empty() && set != nullptr)
    launch.rendezvous = set;
  if (!launch.rendezvous.empty() || nodes < 2) return hosts;
  const std::string& first = hosts.front();
  launch.rendezvous =
      fmt::format("{}:{}", first.find(':') == std::string::npos ? first : "[" + first + "]", kRendezvousPort);
  return hosts;
}

}  // namespace prun
