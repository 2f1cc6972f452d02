// Which transport carries a group: what `--transport auto` decides by, and the reasons that `prun plugins --explain`
// shows.
//
// A transport is weighed for ranks of one host and for ranks of several. Where what is best on a host does not reach
// beyond it, a job of several hosts has two: one inside hosts, one between them.
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
  int score = 0;                 // 0: cannot, or is not asked
  std::string reason;            // why the score is 0; "" else
};

// All plugins, the best first. Loads only those that offer themselves for this kind of memory and these ranks.
std::vector<Candidate> weigh(const WorldOptions& options, const std::vector<int>& ranks, bool several_hosts,
                             prun_mem_kind memory = PRUN_MEM_HOST);

struct Transports {
  Plugin between;                // of all ranks
  std::optional<Plugin> inside;  // of the ranks of one host, where that is another one
  std::string name() const { return inside ? inside->name + "+" + between.name : between.name; }
};

// As the options say, or of those that all ranks have the one that is best for the rank that likes it least; collective
// over all ranks if there are several hosts. Throws usage_error when nothing reaches all ranks, with each plugin's
// reason.
Transports choose_transports(const WorldOptions& options, const Hosts& hosts, Bootstrap& bootstrap);

// usage_error unless "auto" or one or two names of plugins that are there.
void check_transport_name(const std::string& transport, const std::vector<std::string>& dirs);
// "shm inside a host, socket between hosts" for "shm+socket".
std::string transport_words(const std::string& name);

}  // namespace prun
