// Boot id and namespaces, exchanged through the bootstrap.
#include "comm/transport/host_map.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include "base/text.h"

namespace prun {

std::string this_host() {
  std::string key;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), key);
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
  return group_by_host(bootstrap.all_gather(options.host.empty() ? this_host() : options.host));
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
