#include "job/bind.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "base/cores.h"
#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

using Cpus = std::vector<int>;

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HostTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;

// Returns null if hwloc cannot read this machine.
HostTopology read_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  HostTopology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_icache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_cache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(raw) != 0) return nullptr;
  return topology;
}

// Returns the CPUs that this process may use, by object of a type.
std::vector<Cpus> cpus_of(hwloc_topology* topology, hwloc_obj_type_t type) {
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> allowed(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  hwloc_get_cpubind(topology, allowed.get(), HWLOC_CPUBIND_PROCESS);
  std::vector<Cpus> all;
  for (hwloc_obj_t each = nullptr; (each = hwloc_get_next_obj_by_type(topology, type, each)) != nullptr;) {
    Cpus cpus;
    for (int cpu = hwloc_bitmap_first(each->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(each->cpuset, cpu))
      if (hwloc_bitmap_isset(allowed.get(), static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
    if (!cpus.empty()) all.push_back(std::move(cpus));
  }
  return all;
}

// Returns whether this process may use all CPUs of the machine.
bool has_all(hwloc_topology* topology) {
  return usable_cores() == hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(topology));
}

// Reads the kernel's list of NUMA nodes, which is cheaper than hwloc's discovery.
bool has_one_node() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string nodes;
  return !(file >> nodes) || nodes == "0";
}

// Returns the CPUs of part `i` of `n` contiguous parts of `places`; one place if there are fewer places than parts.
Cpus part(const std::vector<Cpus>& places, int i, int n) {
  const size_t count = places.size(), part = static_cast<size_t>(i), parts = static_cast<size_t>(n);
  const size_t first = part * count / parts, last = std::max(first + 1, (part + 1) * count / parts);
  Cpus cpus;
  for (size_t p = first; p < last; ++p) cpus.insert(cpus.end(), places[p].begin(), places[p].end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// Returns ranges such as "0-3,8".
std::string range_text(const Cpus& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    text += text.empty() ? "" : ",";
    text += end == i ? std::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace

std::string check_bind(const std::string& how) {
  const std::vector<std::string> known = {"core", "numa", "none", "auto"};
  if (std::find(known.begin(), known.end(), how) == known.end())
    throw usage_error(fmt::format("--bind is core, numa, none or auto, not '{}'", how));
  return how;
}

Binding::Binding(const std::string& how, int local_ranks) {
  if (how == "none" || (how == "auto" && (local_ranks < 2 || has_one_node()))) return;
  const HostTopology topology = read_topology();
  if (topology == nullptr) {
    if (how != "auto") throw usage_error(fmt::format("--bind {}: hwloc cannot read this machine", how));
    return;
  }
  std::vector<Cpus> cores = cpus_of(topology.get(), HWLOC_OBJ_CORE);
  if (cores.empty()) cores = cpus_of(topology.get(), HWLOC_OBJ_PU);
  const std::vector<Cpus> nodes = cpus_of(topology.get(), HWLOC_OBJ_NUMANODE);
  const bool enough = local_ranks <= static_cast<int>(cores.size());
  if (how == "auto" && (!enough || nodes.size() < 2 || !has_all(topology.get()))) return;
  if (how == "core" && !enough)
    throw usage_error(fmt::format("--bind core: {} and {}; a rank needs one of its own (--bind numa, none)",
                                  counted(local_ranks, "rank"), counted(std::ssize(cores), "core")));
  const std::vector<Cpus>& places = how == "core" ? cores : nodes;
  if (places.empty()) throw usage_error(fmt::format("--bind {}: hwloc sees none of this machine's", how));
  std::vector<std::string> parts;
  for (int rank = 0; rank < local_ranks; ++rank) {
    cpus_.push_back(part(places, rank, local_ranks));
    const std::string range = range_text(cpus_.back());
    if (parts.empty() || parts.back() != range) parts.push_back(range);
  }
  text_ = fmt::format("{} {}", how == "core" ? "cores" : "NUMA nodes, cores", join(parts, " | "));
}

void Binding::apply(int local_rank) const {
  if (local_rank < 0 || local_rank >= std::ssize(cpus_)) return;
  bind_to(cpus_[static_cast<size_t>(local_rank)]);
}

}  // namespace prun
