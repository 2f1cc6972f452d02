// Worlds: one rank has no transport; several have one, or one inside hosts and another between them.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "comm/collectives/communicator.h"
#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/transport/job_state.h"
#include "comm/transport/transport_choice.h"
#include "comm/transport/transport_session.h"
#include "comm/transport/watchdog.h"
#include "prun/chaos.h"
#include "prun/sdk/descriptor.h"

namespace prun {
namespace {

// Anonymous memory, zeroed, freed with the world.
class Pages {
 public:
  void* allocate(int64_t bytes) {
    constexpr int64_t kHugePagesFrom = 8 << 20;  // below, rounding up costs more than TLB misses
    size_t size = std::max<int64_t>(bytes, 1);
    sdk::Mapping pages = sdk::Mapping::pages(size);
    if (!pages) throw Error(Exit::out_of_memory, fmt::format("no memory for {}", human_bytes(bytes)));
    if (bytes >= kHugePagesFrom) madvise(pages.base(), size, MADV_HUGEPAGE);
    return mappings_.emplace_back(std::move(pages)).base();
  }

 private:
  std::vector<sdk::Mapping> mappings_;
};

class LoneWorld : public World {
 public:
  ~LoneWorld() override { set_job(nullptr, 1); }
  void* allocate(int64_t bytes) override { return pages_.allocate(bytes); }
  void connect() override {}
  Communicator& communicator(const std::vector<int>& ranks, int) override {
    PRUN_CHECK(ranks == std::vector<int>{0}, fmt::format("ranks {} in a world of one", fmt::join(ranks, ", ")));
    return *communicator_;
  }
  PutChannel* put_channel(int, int) override { return nullptr; }
  void abort() override { set_job_aborted(); }
  std::string transport_name() const override { return "none"; }

 private:
  Pages pages_;
  std::unique_ptr<Communicator> communicator_ = make_lone_communicator();
};

// Ends this rank when a plugin's function does not return, in time for the other ranks to learn the reason.
class CallWatch {
 public:
  CallWatch(const Transports& transports, const WorldOptions& options, Bootstrap& bootstrap) {
    const double limit_s = 0.75 * options.deadline_s;
    std::string who = named(transports.between);
    if (transports.inside) who = named(*transports.inside) + " or " + who;
    watch_plugin_calls(limit_s, [&bootstrap, limit_s, who](const char* function) {
      bootstrap.fatal(
          Error(Exit::hang, fmt::format("transport {}: its function '{}' has not returned for {}; 10 ms are allowed",
                                        who, function, human_seconds(limit_s))));
    });
  }
  ~CallWatch() { watch_plugin_calls(0, nullptr); }

 private:
  static std::string named(const Plugin& plugin) { return fmt::format("{} ({})", plugin.name, plugin.path); }
};

// Returns the fault injection of a session that reaches the peer; null: it does not, or its transport has none.
const prun_chaos* chaos_of(const TransportSession& session, int peer) {
  if (session.plugin_rank(peer) < 0 || session.table().ext == nullptr) return nullptr;
  return static_cast<const prun_chaos*>(session.table().ext(PRUN_CHAOS));
}

class TransportWorld : public World {
 public:
  // Opens the transport inside hosts first, because memory comes from it if it provides some.
  TransportWorld(Transports transports, HostMap hosts, const WorldOptions& options, Bootstrap& bootstrap)
      : options_(options),
        bootstrap_(bootstrap),
        hosts_(std::move(hosts)),
        two_level_(transports.inside.has_value()),
        watch_(transports, options, bootstrap) {
    const std::vector<int>& here = hosts_.with(options.rank);
    if (two_level_ && here.size() > 1) inside_.emplace(std::move(*transports.inside), options_, here);
    between_.emplace(std::move(transports.between), options_);
    if (two_level_) between_->set_patience(kPatience);
  }
  ~TransportWorld() override {
    between_->enqueued().finish();
    communicators_.clear();
    set_job(nullptr, 1);
  }

  void* allocate(int64_t bytes) override {
    const int64_t size = std::max<int64_t>(bytes, 1);
    TransportSession& nearest = inside_ ? *inside_ : *between_;
    void* memory = nearest.allocate(size);
    const bool own = memory != nullptr;
    if (!own) memory = pages_.allocate(bytes);
    if (!own && inside_) inside_->adopt(memory, size);
    if (!own || inside_) between_->adopt(memory, size);
    return memory;
  }
  bool enqueues(prun_mem_kind kind) const override {
    return !two_level_ && between_->table().queue_ordered != 0 && (between_->table().mem_kinds & 1u << kind) != 0;
  }
  void* allocate_device(int64_t bytes, prun_mem_kind kind) override { return between_->allocate(bytes, kind); }
  void adopt_device(void* ptr, int64_t bytes, prun_mem_kind kind) override { between_->adopt(ptr, bytes, kind); }
  void connect() override {
    if (inside_)
      join_and_connect(*inside_, options_, bootstrap_);
    else if (two_level_)
      join_without(bootstrap_);
    join_and_connect(*between_, options_, bootstrap_);
  }

  Communicator& communicator(const std::vector<int>& ranks, int lane) override {
    std::unique_ptr<Communicator>& entry = communicators_[{ranks, lane}];
    if (entry == nullptr) entry = make(ranks, lane);
    return *entry;
  }
  // If two transports are open, the one inside the host owns the memory, so there is no window between hosts.
  PutChannel* put_channel(int peer, int lane) override {
    auto [entry, fresh] = put_channels_.try_emplace({peer, lane});
    const bool near = inside_ && hosts_.same(peer, options_.rank);
    if (fresh && (near || !two_level_)) entry->second = make_put_channel(near ? *inside_ : *between_, peer, lane);
    return entry->second.get();
  }
  int check(double waited_s) override {
    between_->enqueued().check();
    const auto now = std::chrono::steady_clock::now();
    if (now - asked_ < kAskEvery) return awaited_;
    asked_ = now;
    awaited_ = -1;
    for (const auto& [group, communicator] : communicators_)
      awaited_ = std::max(awaited_, communicator->check(waited_s));
    return awaited_;
  }
  bool can_disturb(int peer) const override {
    return (inside_ && chaos_of(*inside_, peer) != nullptr) || chaos_of(*between_, peer) != nullptr;
  }
  bool disturb(int fault, int peer, uint64_t seed) override {
    for (TransportSession* session : {inside_ ? &*inside_ : nullptr, &*between_}) {
      const prun_chaos* chaos = session != nullptr ? chaos_of(*session, peer) : nullptr;
      if (chaos != nullptr && chaos->disturb(session->ctx(), fault, session->plugin_rank(peer), seed) != 0) return true;
    }
    return false;
  }
  void abort() override {
    between_->abort();
    if (inside_) inside_->abort();
  }
  std::string transport_name() const override { return options_.transport; }
  bool several_hosts() const override { return hosts_.count() > 1; }
  bool calibrated() const override {
    if (!options_.algorithm.empty() || (!two_level_ && several_hosts())) return false;
    return !costs_of(inside_ ? *inside_ : *between_).empty();
  }

 private:
  static constexpr auto kAskEvery = std::chrono::milliseconds(100);
  static constexpr double kPatience = 0.5;  // seconds; ranks that wait inside the culprit's host report first

  // Groups inside one host, or with one rank per host, use one transport; all others use both.
  std::unique_ptr<Communicator> make(const std::vector<int>& ranks, int lane) {
    auto self = std::find(ranks.begin(), ranks.end(), options_.rank);
    PRUN_CHECK(self != ranks.end(),
               fmt::format("rank {} is not among ranks {}", options_.rank, fmt::join(ranks, ", ")));
    if (ranks.size() == 1) return make_lone_communicator();
    const int index = self - ranks.begin();
    std::set<int> hosts;
    for (int rank : ranks) hosts.insert(hosts_.host_of[rank]);
    if (two_level_ && hosts.size() > 1 && hosts.size() < ranks.size())
      return make_hierarchical_communicator(inside_ ? &*inside_ : nullptr, *between_, hosts_, ranks, index, lane,
                                            options_.algorithm);
    TransportSession& session = two_level_ && hosts.size() == 1 ? *inside_ : *between_;
    return make_communicator(session, ranks, index, agree_on_tags(session, ranks, index, lane, 1), options_.algorithm,
                             hosts.size() == 1 ? costs_of(session) : AlgorithmCosts(), hosts.size() > 1);
  }

  AlgorithmCosts costs_of(const TransportSession& session) const {
    return {options_.algorithm_costs, session.plugin().name};
  }

  WorldOptions options_;
  Bootstrap& bootstrap_;
  HostMap hosts_;
  bool two_level_;  // the job has a transport inside hosts, perhaps not on this host
  Pages pages_;
  CallWatch watch_;  // outlives the sessions, because it also watches their close
  std::optional<TransportSession> inside_, between_;
  std::map<std::pair<std::vector<int>, int>, std::unique_ptr<Communicator>> communicators_;
  std::chrono::steady_clock::time_point asked_{};                            // when check last polled the transport
  int awaited_ = -1;                                                         // its result
  std::map<std::pair<int, int>, std::unique_ptr<PutChannel>> put_channels_;  // by peer and lane
};

}  // namespace

std::unique_ptr<World> World::open(const WorldOptions& options, Bootstrap& bootstrap) {
  check_algorithm_name(options.algorithm);
  [[maybe_unused]] const AlgorithmCosts read(options.algorithm_costs, "");  // throws if the text is malformed
  set_job(&bootstrap, options.local_ranks);
  if (options.ranks == 1) {
    // One rank needs no transport, but a named one that could not be opened here is rejected all the same.
    if (options.transport != "auto") {
      Transports chosen = choose_transports(options, group_by_host({""}), bootstrap);
      const CallWatch watch(chosen, options, bootstrap);
      const TransportSession tried(std::move(chosen.between), options);
    }
    return std::make_unique<LoneWorld>();
  }
  HostMap hosts = find_hosts(options, bootstrap);
  const std::vector<int>& here = hosts.with(options.rank);
  WorldOptions placed = options;
  placed.local_ranks = std::ssize(here);
  placed.local_rank = std::find(here.begin(), here.end(), options.rank) - here.begin();
  set_job(&bootstrap, placed.local_ranks);
  Transports transports = choose_transports(placed, hosts, bootstrap);
  if (options.adapt != nullptr) options.adapt(transports.between.table);
  placed.transport = transports.name();
  return std::make_unique<TransportWorld>(std::move(transports), std::move(hosts), placed, bootstrap);
}

}  // namespace prun
