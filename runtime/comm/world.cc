// Worlds: of one rank, which needs no transport, and of many, which opens one.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "comm/communicator.h"
#include "comm/host.h"
#include "comm/join.h"
#include "comm/plugin.h"
#include "comm/put_channel.h"

namespace prun {
namespace {

// Anonymous memory, zeroed, given back with the world.
class Pages {
 public:
  ~Pages() {
    for (auto [memory, bytes] : mappings_) munmap(memory, bytes);
  }
  void* allocate(int64_t bytes) {
    constexpr int64_t kHugePagesFrom = 8 << 20;  // below, rounding up would cost more than the misses
    size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error(Exit::out_of_memory, fmt::format("no memory for {}", human_bytes(bytes)));
    if (bytes >= kHugePagesFrom) madvise(memory, size, MADV_HUGEPAGE);
    mappings_.emplace_back(memory, size);
    return memory;
  }

 private:
  std::vector<std::pair<void*, size_t>> mappings_;
};

class LoneWorld : public World {
 public:
  ~LoneWorld() override { set_host(nullptr, 1); }
  void* allocate(int64_t bytes) override { return pages_.allocate(bytes); }
  void connect() override {}
  Communicator& communicator(const std::vector<int>& ranks, int) override {
    PRUN_CHECK(ranks == std::vector<int>{0}, fmt::format("ranks {} in a world of one", fmt::join(ranks, ", ")));
    return *communicator_;
  }
  PutChannel* put_channel(int, int) override { return nullptr; }
  void abort() override { set_aborted(); }
  std::string transport_name() const override { return "none"; }

 private:
  Pages pages_;
  std::unique_ptr<Communicator> communicator_ = make_lone_communicator();
};

class TransportWorld : public World {
 public:
  TransportWorld(Plugin plugin, const WorldOptions& options, Bootstrap& bootstrap)
      : options_(options), bootstrap_(bootstrap), link_(std::move(plugin), options) {}
  ~TransportWorld() override {
    communicators_.clear();
    set_host(nullptr, 1);
  }

  void* allocate(int64_t bytes) override {
    void* memory = link_.allocate(std::max<int64_t>(bytes, 1));
    return memory != nullptr ? memory : pages_.allocate(bytes);
  }
  void connect() override { join_and_connect(link_, options_, bootstrap_); }

  Communicator& communicator(const std::vector<int>& ranks, int lane) override {
    std::unique_ptr<Communicator>& entry = communicators_[{ranks, lane}];
    if (entry == nullptr) entry = make(ranks, lane);
    return *entry;
  }
  PutChannel* put_channel(int peer, int lane) override {
    auto [entry, fresh] = put_channels_.try_emplace({peer, lane});
    if (fresh) entry->second = make_put_channel(link_, peer, lane);
    return entry->second.get();
  }
  void abort() override { link_.abort(); }
  std::string transport_name() const override { return link_.plugin().name; }

 private:
  std::unique_ptr<Communicator> make(const std::vector<int>& ranks, int lane) {
    auto self = std::find(ranks.begin(), ranks.end(), options_.rank);
    PRUN_CHECK(self != ranks.end(),
               fmt::format("rank {} is not among ranks {}", options_.rank, fmt::join(ranks, ", ")));
    if (ranks.size() == 1) return make_lone_communicator();
    int index = static_cast<int>(self - ranks.begin());
    int agreed = agree_on_lane(link_, ranks, index, lane, next_lane_);
    next_lane_ = agreed + 1;
    return make_communicator(link_, ranks, index, agreed, options_.algorithm);
  }

  WorldOptions options_;
  Bootstrap& bootstrap_;
  Pages pages_;
  Link link_;
  std::map<std::pair<std::vector<int>, int>, std::unique_ptr<Communicator>> communicators_;
  std::map<std::pair<int, int>, std::unique_ptr<PutChannel>> put_channels_;  // by peer and lane
  int next_lane_ = 1;  // of the transport; 0 is where members agree on the others
};

// Only plugins whose manifest offers itself are loaded and asked for their score.
Plugin choose_plugin(const WorldOptions& options) {
  prun_open_params params{};
  params.size = sizeof params;
  params.rank = options.rank;
  params.ranks = options.ranks;
  params.local_rank = options.local_rank;
  params.local_ranks = options.local_ranks;
  params.options = options.transport_options.c_str();
  std::vector<int> ranks(static_cast<size_t>(options.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  Plugin best;
  int best_score = 0;
  std::string reasons;
  for (const PluginFile& file : find_plugins(options.plugin_dirs)) {
    if (!file.automatic || !file.host_memory || (file.local_only && options.local_ranks < options.ranks)) continue;
    try {
      Plugin plugin = load_plugin(file, host_table());
      int score = plugin.table.score != nullptr ? plugin.table.score(&params, ranks.data(), options.ranks) : 1;
      if (score > best_score) best = std::move(plugin), best_score = score;
    } catch (const Error& error) {
      spdlog::warn("transport auto passes over {}", error.message());
      reasons += "; " + error.message();
    }
  }
  if (best_score == 0) {
    throw usage_error(fmt::format("transport auto: no plugin in {} can connect these {} ranks{}",
                                  options.plugin_dirs.empty() ? "any directory" : join(options.plugin_dirs, ", "),
                                  options.ranks, reasons));
  }
  return best;
}

}  // namespace

std::unique_ptr<World> World::open(const WorldOptions& options, Bootstrap& bootstrap) {
  check_algorithm_name(options.algorithm);
  set_host(&bootstrap, options.local_ranks);
  bool automatic = options.transport == "auto";
  if (options.ranks == 1) {
    // Nothing to transport; but a name that is wrong is wrong on one rank, too.
    if (!automatic) load_named(options.transport, options.plugin_dirs, host_table());
    return std::make_unique<LoneWorld>();
  }
  Plugin plugin = automatic ? choose_plugin(options) : load_named(options.transport, options.plugin_dirs, host_table());
  return std::make_unique<TransportWorld>(std::move(plugin), options, bootstrap);
}

}  // namespace prun
