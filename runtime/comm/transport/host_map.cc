// Boot id and namespaces, exchanged through the bootstrap.
#include "comm/transport/host_map.h"

#include <fmt/format.h>
#include <prun/sdk/local_socket.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <map>

#include "base/machine_id.h"
#include "base/text.h"

namespace prun {
namespace {

std::string witness_name(const WorldOptions& options, int rank) {
  return fmt::format("prun/host/{:.36}/{}", options.job_id, rank);
}

bool answers(const WorldOptions& options, int rank) {
  return sdk::connect_locally(witness_name(options, rank), SOCK_STREAM) || errno == EAGAIN;
}

// Clones of a running virtual machine have equal boot ids and namespaces, so ranks with equal names are on one host
// only if a local socket connects them. Returns a name per rank that also differs between clones. Collective. Plugins
// measure the host on their own, so a rank that is on a clone passes its new name to them by PRUN_HOST_ID.
std::vector<std::string> tell_clones_apart(const WorldOptions& options, Bootstrap& bootstrap) {
  constexpr int kBacklog = 4096;
  // Open until the second all_gather ends.
  const sdk::Descriptor witness = sdk::listen_locally(witness_name(options, options.rank), SOCK_STREAM, kBacklog);
  std::vector<std::string> names = bootstrap.all_gather(this_host());
  int refused = -1, first = 0;
  for (; first < options.rank; ++first) {
    if (names[first] != names[options.rank]) continue;
    if (!witness || answers(options, first)) break;
    if (refused < 0) refused = first;
  }
  if (refused >= 0) {
    setenv("PRUN_HOST_ID", fmt::format("{:.20}/{}", machine_id(), first).c_str(), 1);
    if (first == options.rank)
      spdlog::warn(
          "rank {} has the host identity of rank {} (boot id or PRUN_HOST_ID), but no local socket connects them: "
          "it is treated as another host",
          options.rank, refused);
  }
  const std::vector<std::string> firsts = bootstrap.all_gather(refused >= 0 ? std::to_string(first) : "");
  for (size_t rank = 0; rank < names.size(); ++rank)
    if (!firsts[rank].empty()) names[rank] += "/" + firsts[rank];
  return names;
}

}  // namespace

std::string this_host() {
  std::string key = machine_id();
  if (machine_id_is_given()) return key;
  for (const char* space : {"net", "ipc"}) {
    struct stat info {};
    if (stat(fmt::format("/proc/self/ns/{}", space).c_str(), &info) == 0)
      key += fmt::format(" {} {}:{}", space, info.st_dev, info.st_ino);
  }
  return key;
}

HostMap group_by_host(const std::vector<std::string>& host_of_rank) {
  HostMap hosts;
  std::map<std::string, int> numbers;
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    auto [entry, is_new] = numbers.emplace(host_of_rank[rank], hosts.count());
    if (is_new) hosts.ranks_of.emplace_back();
    hosts.host_of.push_back(entry->second);
    hosts.ranks_of[entry->second].push_back(rank);
  }
  return hosts;
}

HostMap find_hosts(const WorldOptions& options, Bootstrap& bootstrap) {
  if (options.local_ranks >= options.ranks && options.host.empty())
    return group_by_host(std::vector<std::string>(options.ranks));
  return group_by_host(options.host.empty() ? tell_clones_apart(options, bootstrap)
                                            : bootstrap.all_gather(options.host));
}

std::string HostMap::text() const {
  std::vector<std::string> parts;
  for (const std::vector<int>& ranks : ranks_of) {
    std::string part;
    for (size_t i = 0; i < ranks.size();) {
      size_t end = i + 1;
      while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
      part += fmt::format("{}{}", part.empty() ? "" : ", ", ranks[i]);
      if (end - i > 1) part += fmt::format("-{}", ranks[end - 1]);
      i = end;
    }
    parts.push_back(part);
  }
  return "ranks " + join(parts, " | ");
}

}  // namespace prun
