// Chooses transports by name, or by the plugins' manifests and scores.
#include "comm/transport/transport_choice.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

#include "base/text.h"

namespace prun {
namespace {

std::vector<int> all_ranks(int n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Returns why shared memory cannot be mapped: the address space limit (ulimit -v) is below the arenas of all ranks plus
// a rank's other needs. "": it can, or the need is unknown. Nothing is measured, because all ranks of a host must
// decide alike.
std::string too_few_addresses(const WorldOptions& options, size_t ranks) {
  constexpr uint64_t kElse = uint64_t{256} << 20;  // code, thread stacks, heaps, the transport's own shared memory
  rlimit limit{};
  if (options.arena_bytes == 0 || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  if (kElse + static_cast<uint64_t>(options.arena_bytes) * ranks <= limit.rlim_cur) return "";
  return fmt::format("cannot map the memory of {} ranks, {} each: the limit on addresses (ulimit -v) is {}", ranks,
                     human_bytes(options.arena_bytes), human_bytes(static_cast<int64_t>(limit.rlim_cur)));
}

// Returns why shared memory cannot be created: the limit on the size of files (ulimit -f) also applies to it, or a
// container refuses the call (seccomp). "": it can. All ranks of a host decide alike.
std::string no_shared_files(const WorldOptions& options) {
  constexpr uint64_t kElse = uint64_t{3} << 30;  // plugins/shm: a sparse segment of 2.1 GiB and 0.7 MiB a rank
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < std::max(kElse, static_cast<uint64_t>(options.arena_bytes)))
    return fmt::format("cannot create memory that ranks share: the limit on the size of files (ulimit -f) is {}",
                       human_bytes(static_cast<int64_t>(limit.rlim_cur)));
  const int fd = memfd_create("prun", MFD_CLOEXEC);
  const int error = errno;
  if (fd >= 0) close(fd);
  const bool refused = fd < 0 && (error == EPERM || error == EACCES || error == ENOSYS);
  return refused ? fmt::format("cannot create memory that ranks share: memfd_create: {} (a seccomp profile)",
                               std::strerror(error))
                 : "";
}

// Returns why shared memory costs too much: each rank maps every other's, and each pair costs pages and page tables on
// both sides, whatever the traffic. "": it does not. All ranks of a host decide alike.
std::string too_many_pairs(size_t ranks) {
  constexpr uint64_t kPair = 24 << 10;  // measured with 200 ranks of plugins/shm: its README, Limits
  const uint64_t bytes = kPair * ranks * ranks;
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes <= memory / 8) return "";
  return fmt::format("would take about {} to map the memory of {} ranks in each of them, and this machine has {}",
                     human_bytes(static_cast<int64_t>(bytes)), ranks, human_bytes(static_cast<int64_t>(memory)));
}

// Returns why so many ranks cannot share local memory; "" if they can.
std::string not_shared(const WorldOptions& options, size_t ranks) {
  std::string why = too_few_addresses(options, ranks);
  if (why.empty()) why = no_shared_files(options);
  return why.empty() ? too_many_pairs(ranks) : why;
}

// Returns why a plugin is not queried for a score, by its manifest alone; "" if it is queried.
std::string not_asked(const PluginFile& file, bool several_hosts, prun_mem_kind memory, bool encrypt) {
  if (!file.automatic) return "does not offer itself to auto (its manifest, AUTO); by name only";
  if (memory == PRUN_MEM_HOST && !file.host_memory) return "does not take host memory";
  if (memory == PRUN_MEM_CUDA && !file.cuda_memory) return "does not take CUDA memory";
  if (several_hosts && file.local_only) return "reaches ranks of one host only";
  if (several_hosts && encrypt && !file.encrypts) return "does not encrypt between hosts (--encrypt)";
  return "";
}

void ask(Candidate& candidate, const WorldOptions& options, const std::vector<int>& ranks) {
  const OpenParams params(options, candidate.file.name);
  try {
    candidate.plugin = load_plugin(candidate.file);
    const prun_transport& table = candidate.plugin->table;
    candidate.score = table.score == nullptr ? 1 : std::clamp(table.score(&params, ranks.data(), ranks.size()), 0, 100);
    if (candidate.score == 0)
      candidate.reason = fmt::format("says that it cannot serve these ranks here ({})", table.summary);
  } catch (const Error& error) {
    candidate.reason = error.message();
  }
}

// Packs a rank's offers: one line "name score" per plugin.
std::string pack(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& c : candidates)
    if (c.score > 0) text += fmt::format("{} {}\n", c.file.name, c.score);
  return text;
}

// Returns the name that all these ranks offer and whose lowest score is highest; "" if there is none.
std::string best_of(const std::vector<std::string>& offers, const std::vector<int>& ranks) {
  std::map<std::string, std::pair<int, size_t>> lowest;  // lowest score, and number of ranks that offer it
  for (int rank : ranks) {
    std::istringstream lines(offers[rank]);
    std::string name;
    for (int score; lines >> name >> score;) {
      auto [entry, is_new] = lowest.emplace(name, std::pair(score, 0));
      entry->second.first = std::min(entry->second.first, score);
      ++entry->second.second;
    }
  }
  std::string best;
  for (const auto& [name, entry] : lowest) {
    if (entry.second == ranks.size() && (best.empty() || entry.first > lowest.at(best).first)) best = name;
  }
  return best;
}

[[noreturn]] void nothing_fits(const WorldOptions& options, const HostMap& hosts,
                               const std::vector<Candidate>& weighed) {
  std::string reasons;
  for (const Candidate& c : weighed)
    reasons += fmt::format("; {} {}", c.file.name, c.reason.empty() ? "is not offered by all ranks" : c.reason);
  throw usage_error(fmt::format("transport auto: no plugin in {} can connect these {} ranks{}{}",
                                options.plugin_dirs.empty() ? "any directory" : join(options.plugin_dirs, ", "),
                                options.ranks, hosts.count() > 1 ? fmt::format(" of {} hosts", hosts.count()) : "",
                                reasons));
}

Plugin taken(std::vector<Candidate>& candidates, const std::string& name) {
  auto at = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.file.name == name; });
  PRUN_CHECK(at != candidates.end() && at->plugin, name);
  return *at->plugin;
}

std::pair<std::string, std::string> split_name(const std::string& transport) {
  size_t plus = transport.find('+');
  if (plus == std::string::npos) return {"", transport};
  return {transport.substr(0, plus), transport.substr(plus + 1)};
}

Transports by_name(const WorldOptions& options, const HostMap& hosts) {
  auto [inside, between] = split_name(options.transport);
  Transports named{load_named(between, options.plugin_dirs), std::nullopt};
  if (named.between.table.local_only != 0 && hosts.count() > 1) {
    throw usage_error(fmt::format(
        "transport {} reaches ranks of one host only, and these are on {}: {}; use auto, or {}+NAME for another one "
        "between hosts",
        between, hosts.count(), hosts.text(), between));
  }
  if (inside.empty() || inside == between) return named;
  Plugin near = load_named(inside, options.plugin_dirs);
  if (hosts.count() == 1) return {std::move(near), std::nullopt};
  if (hosts.count() < options.ranks) named.inside = std::move(near);
  return named;
}

// Returns the best transport that all ranks have for device memory; nullopt: the job stages through host memory.
std::optional<Plugin> on_device(const WorldOptions& options, const std::vector<int>& all, bool several,
                                Bootstrap& bootstrap) {
  std::vector<Candidate> found = weigh(options, all, several, options.memory);
  const std::string best = best_of(bootstrap.all_gather(pack(found)), all);
  if (best.empty()) return std::nullopt;
  return taken(found, best);
}

Transports by_score(const WorldOptions& options, const HostMap& hosts, Bootstrap& bootstrap) {
  const std::vector<int> all = all_ranks(options.ranks);
  const bool several = hosts.count() > 1;
  if (options.memory != PRUN_MEM_HOST) {
    if (std::optional<Plugin> plugin = on_device(options, all, several, bootstrap)) return {*plugin, std::nullopt};
  }
  std::vector<Candidate> far = weigh(options, all, several);
  for (const Candidate& c : far) {
    if (!c.file.automatic || c.plugin || c.reason.empty() ||
        !not_asked(c.file, several, PRUN_MEM_HOST, options.encrypt).empty())
      continue;
    const bool limited = c.file.local_only && !not_shared(options, all.size()).empty();  // as all ranks decide
    if (!limited) spdlog::warn("transport: auto passes over {}", c.reason);
    if (limited && options.rank == 0) spdlog::warn("transport: auto passes over {}: it {}", c.file.name, c.reason);
  }
  if (!several) {
    if (far.empty() || far.front().score == 0) nothing_fits(options, hosts, far);
    return {*far.front().plugin, std::nullopt};
  }
  const std::vector<int>& here = hosts.with(options.rank);
  std::vector<Candidate> near;
  if (here.size() > 1) near = weigh(options, here, false);
  const std::string best_far = best_of(bootstrap.all_gather(pack(far)), all);
  const std::vector<std::string> offers = bootstrap.all_gather(pack(near));
  if (best_far.empty()) nothing_fits(options, hosts, far);
  std::vector<int> in_company;
  for (int rank : all)
    if (hosts.with(rank).size() > 1) in_company.push_back(rank);
  Transports chosen{taken(far, best_far), std::nullopt};
  const std::string best_near = best_of(offers, in_company);
  if (best_near.empty() || best_near == best_far) return chosen;
  // A rank alone on its host never opens the inside transport, but its groups take part in choosing between both.
  chosen.inside = near.empty() ? load_named(best_near, options.plugin_dirs) : taken(near, best_near);
  return chosen;
}

}  // namespace

std::vector<Candidate> weigh(const WorldOptions& options, const std::vector<int>& ranks, bool several_hosts,
                             prun_mem_kind memory) {
  std::vector<Candidate> all;
  for (PluginFile& file : find_plugins(options.plugin_dirs)) {
    Candidate candidate{std::move(file), std::nullopt, 0, ""};
    candidate.reason = not_asked(candidate.file, several_hosts, memory, options.encrypt);
    if (candidate.reason.empty() && candidate.file.local_only && memory == PRUN_MEM_HOST)
      candidate.reason = not_shared(options, ranks.size());
    if (candidate.reason.empty()) ask(candidate, options, ranks);
    all.push_back(std::move(candidate));
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  return all;
}

Transports choose_transports(const WorldOptions& options, const HostMap& hosts, Bootstrap& bootstrap) {
  check_option_names(options.transport_options, options.plugin_dirs);
  return options.transport == "auto" ? by_score(options, hosts, bootstrap) : by_name(options, hosts);
}

void check_transport_name(const std::string& transport, const std::vector<std::string>& dirs) {
  if (transport == "auto") return;
  auto [inside, between] = split_name(transport);
  if (!inside.empty()) find_named(inside, dirs);
  find_named(between, dirs);
}

void check_encryption(const WorldOptions& options, int nodes) {
  if (!options.encrypt || nodes == 1 || options.transport == "auto") return;
  const auto [inside, between] = split_name(options.transport);
  const PluginFile named = find_named(between, options.plugin_dirs);
  if (named.encrypts || named.local_only) return;
  std::vector<std::string> others;
  for (const PluginFile& file : find_plugins(options.plugin_dirs))
    if (file.encrypts) others.push_back(file.name);
  throw usage_error(fmt::format("--encrypt: transport {} does not encrypt between hosts{}", between,
                                others.empty() ? "" : fmt::format("; --transport auto and {} do", join(others, ", "))));
}

std::string transport_words(const std::string& name) {
  auto [inside, between] = split_name(name);
  return inside.empty() ? between : fmt::format("{} inside a host, {} between hosts", inside, between);
}

}  // namespace prun
