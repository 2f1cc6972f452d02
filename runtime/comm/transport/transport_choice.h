// The choice of a job's transports by `--transport`, and the reasons that `prun plugins --explain` shows.
//
// A transport is weighed for ranks of one host and for ranks of several. Where the best on a host does not reach beyond
// it, a job of several hosts has two transports: one inside hosts, one between them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/host_map.h"
#include "comm/transport/plugin.h"

namespace prun {

// A plugin weighed for a group.
struct Candidate {
  PluginFile file;
  std::optional<Plugin> plugin;  // loaded
  int score = 0;                 // 0 .. 100; 0: it cannot serve these ranks, or was not asked
  std::string reason;            // why the score is 0
};

// All plugins, the best first. Loads only those whose manifests fit this kind of memory and these ranks.
std::vector<Candidate> weigh(const WorldOptions& options, const std::vector<int>& ranks, bool several_hosts,
                             prun_mem_kind memory = PRUN_MEM_HOST);

struct Transports {
  Plugin between;                // connects all ranks
  std::optional<Plugin> inside;  // connects the ranks of one host, where that is another plugin
  std::string name() const { return inside ? inside->name + "+" + between.name : between.name; }
};

// The transports that the options name; for `auto`, of the plugins that all ranks have, the one whose lowest score on
// any rank is the highest. Collective over all ranks if there are several hosts. Throws usage_error when nothing
// reaches all ranks, with each plugin's reason.
Transports choose_transports(const WorldOptions& options, const HostMap& hosts, Bootstrap& bootstrap);

// Throws usage_error unless `transport` is "auto" or names one or two plugins that are there.
void check_transport_name(const std::string& transport, const std::vector<std::string>& dirs);
// Throws usage_error where `options.encrypt` asks more than the named transport does between nodes.
void check_encryption(const WorldOptions& options, int nodes);
// "shm inside a host, socket between hosts" for "shm+socket".
std::string transport_words(const std::string& name);

}  // namespace prun
