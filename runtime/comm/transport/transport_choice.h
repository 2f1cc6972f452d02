// Chooses a job's transports by `--transport`, with the reasons that `prun plugins --explain` prints.
//
// A transport is scored for ranks of one host and for ranks of several. If the best one on a host cannot leave it, a
// job of several hosts has two transports: one inside hosts, one between them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/host_map.h"
#include "comm/transport/plugin.h"

namespace prun {

// A plugin scored for a group.
struct Candidate {
  PluginFile file;
  std::optional<Plugin> plugin;  // loaded
  int score = 0;                 // 0 .. 100; 0 = cannot serve these ranks, or was not queried
  std::string reason;            // explains a score of 0
};

// Returns all plugins, the best first. Loads only those whose manifests fit this kind of memory and these ranks.
std::vector<Candidate> weigh(const WorldOptions& options, const std::vector<int>& ranks, bool several_hosts,
                             prun_mem_kind memory = PRUN_MEM_HOST);

struct Transports {
  Plugin between;                // connects all ranks
  std::optional<Plugin> inside;  // connects the ranks of one host, if that is another plugin
  std::string name() const { return inside ? inside->name + "+" + between.name : between.name; }
};

// Returns the transports that the options name. `auto` selects, among the plugins that all ranks have, the one whose
// lowest score over the ranks is highest. Collective over all ranks if there are several hosts. Throws usage_error with
// each plugin's reason if none reaches all ranks.
Transports choose_transports(const WorldOptions& options, const HostMap& hosts, Bootstrap& bootstrap);

// Throws usage_error unless `transport` is "auto" or names one or two existing plugins.
void check_transport_name(const std::string& transport, const std::vector<std::string>& dirs);
// Throws usage_error if `options.encrypt` is set and the named transport does not encrypt between nodes.
void check_encryption(const WorldOptions& options, int nodes);
// Returns "shm inside a host, socket between hosts" for "shm+socket".
std::string transport_words(const std::string& name);

}  // namespace prun
